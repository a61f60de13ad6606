"""Everything the product can launch: the kernels that each kernel file lists in its `catalog`.

`scripts/kernels_report.py` builds and reports them, tests/build holds them to their budgets.
"""

import importlib
import inspect

from .build import PACKAGE, KernelSpec

MODULES = (
    "norm",
    "rope",
    "embed",
    "penalize",
    "sample",
    "attention",
    "linear",
    "fill",
    "unpack",
    "bandwidth",
)


def catalog(decoders: dict[str, str]) -> list[KernelSpec]:
    """Kernels of all files, each once. `decoders` names the weight formats: {name: "module:function"} of the
    function that returns a format's device decoder; files whose kernels depend on formats take it as their
    argument."""
    specs: dict[KernelSpec, None] = {}
    for name in MODULES:
        listing = importlib.import_module(f"{PACKAGE}.{name}").catalog
        found = listing(decoders) if inspect.signature(listing).parameters else listing()
        specs.update(dict.fromkeys(found))
    names = [spec.name for spec in specs]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"kernels of one name: {sorted(twice)}"
    return list(specs)
