"""Stands for PyTorch, of which kvcached's tools ask only for the memory of the GPU."""
from types import SimpleNamespace

TOTAL = 64 << 20

cuda = SimpleNamespace(
    is_available=lambda: True,
    get_device_properties=lambda device: SimpleNamespace(total_memory=TOTAL),
    mem_get_info=lambda: (TOTAL // 4, TOTAL),
)
