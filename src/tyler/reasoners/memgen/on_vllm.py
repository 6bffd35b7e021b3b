"""A MemGen without a trigger on vLLM: its weaver is a synthesizer whose input is mapped; delimiters call it."""

from __future__ import annotations

from typing import Any

from tyler.engine.request import Request
from tyler.engine.request_state import RequestState
from tyler.engine.vllm.engine import Answer, VllmEngine
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.reasoners.memgen.decoding import schedule_of
from tyler.reasoners.memgen.routing import TAIL, ends_in_delimiter
from tyler.reasoners.memgen.weaver import Weaver


class MemGenOnVllm(VllmEngine):
    """`VllmEngine` with a weaver. `max_new_tokens` counts visible tokens."""

    def __init__(self, backbone: Backbone, operators: tuple[Operator, ...], weaver: Weaver, **settings: Any) -> None:
        super().__init__(backbone, operators, Policy(backbone, len(operators)).eval(), weaver, **settings)

    def prepare(self, request: Request, **settings: Any) -> RequestState:
        """As `VllmEngine.prepare`. Raises TypeError for a request with another router than MemGen's."""
        row = super().prepare(request, **settings)
        schedule_of(row)
        return row

    def counted(self, row: RequestState) -> int:
        return len(row.visible)

    def _park_scheduled(self, answer: Answer) -> None:
        if schedule_of(answer).unseen:
            ids = [*answer.request.prompt_ids[-TAIL:], *answer.visible.tokens]
            schedule_of(answer).look(ends_in_delimiter(self.backbone.tokenizer, ids))
        super()._park_scheduled(answer)
