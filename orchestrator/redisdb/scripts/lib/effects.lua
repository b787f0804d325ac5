-- Effects of a run that put an item into records: once for their key.
local function record_effect(effects, key, effect) redis.call('HSET', effects, key, cjson.encode(effect)) end

-- What a script answers without doing anything: {'lost'} if the run is not held under this claim, {'exists', item} if an
-- earlier try had the effect, which this try takes up; else nil.
local function earlier(run, effects, claim, key)
  if not held_run(run, claim) then return { 'lost' } end
  local made = redis.call('HGET', effects, key)
  if not made then return nil end
  local effect = cjson.decode(made)
  effect.claim = claim
  record_effect(effects, key, effect)
  return { 'exists', effect.item }
end
