"""SEAL alone: its real sizes, its own check of security, large rings, a missing library."""

import subprocess
import sys

import numpy as np
import pytest

from weft import WeftError
from weft.ckks.backends import Seal
from weft.ckks.parameters import Parameters
from weft.extra import needed

NUMBER = 8
"""The bytes of a coefficient."""


@pytest.mark.parametrize(
    "parameters",
    [
        Parameters(8192, 2),
        Parameters(4096, 0, 30, 40, 50),
        Parameters(4096, 5, security=None),
        Parameters(16384, 4, 30, 45, 50, security=192),
    ],
    ids=str,
)
def test_sizes_are_those_of_seal(parameters):
    backend = Seal(parameters, [1, 5])
    for level in range(parameters.depth + 1):
        content = backend.encrypt([1.0], level).content
        assert content.dyn_array().size() * NUMBER == parameters.ciphertext_bytes(level)
        plain = backend._encode(1.0, level, 2.0**20)
        assert 2 * plain.dyn_array().size() * NUMBER == parameters.ciphertext_bytes(level)
    turning = backend._galois.key(pow(3, 5, 2 * parameters.ring))
    assert key_bytes(turning) == parameters.rotation_key_bytes
    relin = backend._relin.data()
    assert sum(map(key_bytes, relin)) == parameters.rotation_key_bytes


def key_bytes(key):
    return sum(part.data().dyn_array().size() for part in key) * NUMBER


@pytest.mark.parametrize("security", [128, 192, 256])
def test_seal_agrees_that_it_is_secure(security):
    """SEAL refuses what its own table does not allow; it takes each of these."""
    for depth in (0, 3):
        parameters = Parameters.fitting(depth, security=security)
        if parameters.ring <= 1 << 15:
            backend = Seal(parameters, relinearise=False)
            assert backend.decrypt(backend.encrypt([1.0]))[0] == pytest.approx(1, abs=1e-6)


def test_refusals_of_seal_are_reported(monkeypatch):
    monkeypatch.setattr("weft.ckks.parameters._check_security", lambda given: None)
    with pytest.raises(WeftError, match=r"SEAL refuses CKKS N=4096: .*: .* not compliant"):
        Seal(Parameters(4096, 2))


def test_other_errors_of_seal_are_not_taken_for_zeros():
    backend, other = Seal(Parameters(8192, 1)), Seal(Parameters(8192, 2))
    with pytest.raises(ValueError, match="not valid for encryption parameters"):
        backend.negate(other.encrypt([1.0]))


def test_the_largest_ring_of_the_tables():
    parameters = Parameters(65536, 1)
    backend = Seal(parameters, [-1], relinearise=False)
    x = np.random.default_rng(0).uniform(-1, 1, parameters.slots)
    turned = backend.rescale(backend.mul_plain(backend.rotate(backend.encrypt(x), -1), x))
    assert np.abs(backend.decrypt(turned) - np.roll(x, 1) * x).max() < 1e-6


def test_only_the_key_holder_reads_it():
    """A ciphertext of zeros that was made in place of a product is a real encryption."""
    parameters = Parameters(8192, 1)
    one, two = Seal(parameters, relinearise=False), Seal(parameters, relinearise=False)
    nothing = one.mul_plain(one.encrypt([1.0]), 0.0)
    assert not nothing.content.is_transparent()
    assert np.abs(one.decrypt(nothing)).max() < 1e-6
    assert np.abs(two.decrypt(nothing)).max() > 1


def test_two_encryptions_of_the_same_differ():
    backend = Seal(Parameters(8192, 1), relinearise=False)
    a, b = (backend.encrypt([1.0]).content for _ in range(2))
    assert [a[n] for n in range(8)] != [b[n] for n in range(8)]


def test_the_library_is_missing(monkeypatch):
    needed.cache_clear()
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    with pytest.raises(WeftError, match="tenseal is needed and not installed") as refused:
        Seal(Parameters(8192, 1))
    assert refused.value.__notes__ == ["hint: pip install 'weft[ckks]'"]


@pytest.mark.parametrize(
    ("module", "libraries"), [("weft", ("numpy", "tenseal")), ("weft.ckks", ("tenseal",))]
)
def test_modules_without_dependencies_import_none(module, libraries):
    check = f"import sys, {module}; sys.exit(any(m in sys.modules for m in {libraries}))"
    subprocess.run([sys.executable, "-c", check], check=True)
