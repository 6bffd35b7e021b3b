"""Devices as a plan sees them: memory, bandwidth, rate, and what it costs to start a layer's work.

The figures of GPUs are those of their data sheets, for dense products; what programs reach of them is less, and
`COMPUTE` and `STREAMING` say how much less a plan counts on. The machine at hand is measured instead
(`device_benchmark.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GB = 10**9
TERA = 10**12

COMPUTE = 0.5
"""Share of the possible rate that the products of a step are taken to reach."""
STREAMING = 0.7
"""Share of the possible bandwidth that reading weights and caches is taken to reach."""
LAUNCH = 0.3e-3
"""Seconds in which Python starts the kernels of one decoder layer: the paper's 91 tokens a second on the 36 layers of
Qwen3-4B are 0.31 ms a layer, four times what reading its weights takes on an H100."""
REPLAY = 16e-6
"""Seconds that the kernels of one decoder layer wait for each other when a CUDA graph replays them, as in decoding:
some 13 with 1.2 microseconds between two. An estimate, which no GPU has seen yet."""


@dataclass(frozen=True)
class Device:
    """One device. `bandwidth` and the rates are what a plan counts on, not what a data sheet says."""

    name: str
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes a second."""
    bfloat16: float
    """Operations a second in matrix products; the same for float16."""
    float32: float
    launch: float
    """Seconds until the work of one decoder layer is started."""
    source: str
    queued: bool = True
    """Whether new work can start while earlier work is done: on a GPU, not on a CPU."""

    def rate(self, dtype: str) -> float:
        """Operations a second in products of this dtype."""
        return self.float32 if dtype == "float32" else self.bfloat16


def gpu(name: str, memory: float, bandwidth: float, bfloat16: float, float32: float, source: str) -> Device:
    """A GPU by its data sheet: GB, GB/s, and TFLOP/s without sparsity."""
    return Device(
        name,
        memory=memory * GB,
        bandwidth=bandwidth * GB * STREAMING,
        bfloat16=bfloat16 * TERA * COMPUTE,
        float32=float32 * TERA * COMPUTE,
        launch=LAUNCH,
        source=source,
    )


KNOWN = {
    device.name: device
    for device in (
        gpu("RTX-4090", 24, 1008, 165.2, 82.6, "NVIDIA Ada GPU architecture, appendix A (bf16 with fp32 sums)"),
        gpu("A100-40GB", 40, 1555, 312, 19.5, "NVIDIA A100 data sheet, SXM"),
        gpu("L40S", 48, 864, 362.05, 91.6, "NVIDIA L40S data sheet"),
        gpu("A100-80GB", 80, 2039, 312, 19.5, "NVIDIA A100 data sheet, SXM"),
        gpu("H100-80GB", 80, 3350, 989, 67, "NVIDIA H100 data sheet, SXM"),
        gpu("H200", 141, 4800, 989, 67, "NVIDIA H200 data sheet, SXM"),
        gpu("B200", 180, 8000, 2250, 75, "NVIDIA DGX B200 data sheet, an eighth of it"),
    )
}
"""From small to large."""

THIS = "this"
"""The name under which a plan measures the machine at hand (`tyler.planning.device_benchmark`)."""


def device_named(name: str) -> Device:
    """A known device by name, or one given by three numbers, `GB,GB/s,TFLOP/s`. Raises ValueError for anything else."""
    by_name = {known.lower(): device for known, device in KNOWN.items()}
    if name.lower() in by_name:
        return by_name[name.lower()]
    try:
        memory, bandwidth, rate = (float(number) for number in name.split(","))
    except ValueError:
        memory = bandwidth = rate = 0.0
    if not all(0 < number < math.inf for number in (memory, bandwidth, rate)):
        raise ValueError(
            f"there is no device {name!r}; known are {', '.join(KNOWN)}; {THIS!r} measures this machine, and any other "
            "is three numbers above 0, its memory in GB, bandwidth in GB/s and bf16 TFLOP/s: --hardware 96,1792,250"
        )
    return gpu(name, memory, bandwidth, rate, rate, "as given; float32 taken as fast as bf16")
