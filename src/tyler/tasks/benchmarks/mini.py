"""`mini`: problems drawn from the generated world of `tyler.tasks.mini`."""

from tyler.tasks.mini import SPLITS, equal, load
from tyler.tasks.task import Generated, boxed

TASK = Generated(
    name="mini",
    title="mini",
    sources=dict.fromkeys(SPLITS),
    load=lambda split, count, seed, rows: load(split, count=count, seed=seed),
    verdict=boxed(lambda answer, gold, options: equal(answer, gold)),
    same=equal,
)
