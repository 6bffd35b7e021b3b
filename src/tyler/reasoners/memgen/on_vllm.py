"""A MemGen without a trigger on vLLM: its weaver is a synthesizer whose input is mapped; delimiters call it."""

from typing import Any

from tyler.engine.request_state import RequestState
from tyler.engine.vllm.engine import Answer, VllmEngine
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.reasoners.memgen.decoding import look
from tyler.reasoners.memgen.weaver import Weaver


class MemGenOnVllm(VllmEngine):
    """`VllmEngine` with a weaver. `max_new_tokens` counts visible tokens."""

    def __init__(self, backbone: Backbone, operators: tuple[Operator, ...], weaver: Weaver, **settings: Any) -> None:
        super().__init__(backbone, operators, Policy(backbone, len(operators)).eval(), weaver, **settings)

    def counted(self, row: RequestState) -> int:
        return len(row.visible)

    def _park_scheduled(self, answer: Answer) -> None:
        look(answer, self.backbone.tokenizer)
        super()._park_scheduled(answer)
