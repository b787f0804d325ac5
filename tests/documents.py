"""What commands print with ``--json``, held to the models that the documentation is made from."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.cli.documents.table import DOCUMENTS


def hold_to_models(arguments: Sequence[str], output: str) -> None:
    """Fail unless each JSON document in the output of a command has the fields of its model, no more and no fewer."""
    command = " ".join(arguments[:2]) if " ".join(arguments[:2]) in DOCUMENTS else arguments[0]
    if "--json" not in arguments or not output:
        return
    for text in output.splitlines() if command == "watch" else [output]:
        found = json.loads(text)
        fitting = [model for model in DOCUMENTS[command] if set(model.model_fields) == set(found)]
        assert fitting, (
            f"{command} prints {sorted(found)}, which is the document of none of {DOCUMENTS[command]}"
        )
        assert fitting[0].model_validate_json(text).model_dump(mode="json") == found
