"""StableHLO text, run by XLA."""

import jax
import numpy as np
from jaxlib import xla_client

_TYPES = {"float64": "f64", "float32": "f32", "int64": "i64", "int32": "i32", "bool": "i1"}


def execute(text, x, source, init):
    """What one operator makes: in its text, `T` is the dtype, `X` and `Y` are the first types."""
    name = _TYPES[str(x.dtype)]
    types = ["x".join(map(str, (*a.shape, name))) for a in (x, source, init)]
    for letter, of in (("tensor<T>", types[2]), ("X", types[0]), ("Y", types[1])):
        text = text.replace(letter, f"tensor<{of}>")
    arguments = ", ".join(f"%{n}: tensor<{of}>" for n, of in enumerate(types))
    module = f"""module {{ func.func public @main({arguments}) -> tensor<{types[0]}> {{
      {text}
      return %r : tensor<{types[0]}> }} }}"""
    (device, *_) = jax.devices("cpu")
    client = device.client
    devices = xla_client.DeviceList((device,))
    ran = client.compile_and_load(module, devices, xla_client.CompileOptions())
    buffers = [jax.device_put(a, device) for a in (x, source, init)]
    (made,) = ran.execute(buffers)
    return np.asarray(made)
