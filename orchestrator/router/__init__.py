"""The router: messages from the streams, validated, authorised and acted upon by type.

The way of an entry, by modules: `router` reads it; `report_buffer` holds it while nobody waits for it; `validation`
checks it; `handlers` and `external` choose its step; `execution` carries out the steps of a round, `starting` and
`already_applied` many at a time. A message that has to wait goes to `delayed`; a message that is given up goes to
`deadletters`.
"""
