"""Lets vLLM's MooncakeConnector start on a machine without a GPU.

The connector asks torch which accelerator is in use. The CUDA build of torch
raises when there is no driver, although the connector only wants a device
number; on such a machine the answer is 0. Nothing else is changed. Put this
directory on PYTHONPATH for the Mooncake pair only.
"""

import importlib.abc
import importlib.util
import sys


class _Accelerator(importlib.abc.MetaPathFinder):
    """Gives torch.accelerator's current_device_index a fallback once it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.accelerator":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            module.current_device_index = lambda: 0

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Accelerator())
