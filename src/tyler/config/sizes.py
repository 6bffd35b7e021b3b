"""How much is held or computed at once. Without torch, so that a plan can count with it before anything is loaded."""

MAX_POSITIONS = 1024
MAX_LOGITS = 2**25
"""At most so many positions, and so many logits, are computed at once: 128 MiB in float32."""


def bytes_of(given: object) -> int:
    """A size in bytes, from a number of them or from text such as "4GB" (thousands) or "1.5 GiB" (1,024s).

    Raises ValueError for an invalid size, or less than a byte.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError  # not for `--help`

    try:
        size = 0 if isinstance(given, bool) else int(TypeAdapter(ByteSize).validate_python(given))
    except ValidationError:
        size = 0
    if size < 1:
        raise ValueError(f"{given!r}; write it as a number of bytes, such as 4GB or 512MiB")
    return size


def positions_at_once(num_actions: int) -> int:
    """How many positions' logits over `num_actions` actions exist at a time by default."""
    return max(1, min(MAX_POSITIONS, MAX_LOGITS // num_actions))
