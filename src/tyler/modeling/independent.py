"""How the models that a user holds are copied, compared and hashed."""

import copy
from dataclasses import fields
from typing import Any, NoReturn, Self

from tyler.modeling.backbone import Backbone


class Independent:
    """A base of dataclasses that hold backbones and what was trained on them.

    A deep copy is independent: everything that training moves is copied, and frozen backbones are shared. A model is
    equal to itself alone. It is not pickled, which would write the backbone's weights and read them as code.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.init}  # type: ignore[arg-type]
        for backbone in [value for value in values.values() if isinstance(value, Backbone)]:
            memo[id(backbone)] = backbone
            memo.update({id(tensor): tensor for tensor in (*backbone.model.parameters(), *backbone.model.buffers())})
        return type(self)(**{name: copy.deepcopy(value, memo) for name, value in values.items()})

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is not pickled; write it with save_pretrained, and read it with from_pretrained "
            "where it is needed"
        )
