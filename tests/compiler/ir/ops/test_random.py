"""Threefry against published and JAX's values, and what the bits may and may not depend on."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.random import key_of, site_words, threefry

# From the file kat_vectors of Random123: counter, key and result of threefry2x32 with 20 rounds.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def words(pair: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(pair[0], np.uint32), np.asarray(pair[1], np.uint32)


def bits(*shape: int, seed: int = 0, site: str = "a", step: tuple[int, ...] = ()) -> np.ndarray:
    return TABLE["random_bits"].numpy(shape=shape, site=site, seed=seed, step=step)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: tuple[int, int], key: tuple[int, int], expected: tuple[int, int]) -> None:
    first, second = threefry(words(key), words(counter))
    assert (int(first), int(second)) == expected


def test_threefry_is_that_of_jax() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        key, counter = rng.integers(0, 2**32, (2, 2), np.uint32), rng.integers(0, 2**32, (2, 8), np.uint32)
        first, second = threefry((key[0, 0], key[0, 1]), (counter[0], counter[1]))
        theirs = np.asarray(threefry_2x32(jnp.asarray(key[0]), jnp.asarray(counter.ravel())))
        np.testing.assert_array_equal(np.concatenate([first, second]), theirs)


def test_bits_by_the_recipe_in_plain_integers() -> None:
    """The derivation written out for one element, by another implementation of Threefry."""

    def jax_threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
        first, second = threefry_2x32(jnp.asarray(key, jnp.uint32), jnp.asarray(counter, jnp.uint32))
        return int(first), int(second)

    seed, step = (7 << 32) + 5, (3, 11)
    key = jax_threefry((5, 7), site_words("noise"))
    key = jax_threefry(key, (3, 0))
    key = jax_threefry(key, (11, 0))
    result = bits(4, 5, seed=seed, site="noise", step=step)
    assert result.dtype == np.uint32
    for position in range(20):
        assert int(result.ravel()[position]) == jax_threefry(key, (position, 0))[0]


def test_the_bits_never_change() -> None:
    """A program gives the same numbers in every version: these values are a promise."""
    assert bits(3, seed=1, site="a", step=(2,)).tolist() == PROMISED


PROMISED = [2643503648, 3467388033, 1827661199]


def test_an_element_depends_on_its_position_alone() -> None:
    whole = bits(100)
    for shape in ((7,), (3, 4), (2, 2, 2), (100,)):
        np.testing.assert_array_equal(bits(*shape).ravel(), whole[: int(np.prod(shape))])
    assert bits(0, 3).shape == (0, 3)
    assert bits().shape == ()


def test_seed_site_and_step_all_matter() -> None:
    calls = [
        bits(64, seed=seed, site=site, step=step)
        for seed in (0, 1, 1 << 32)
        for site in ("a", "b")
        for step in ((), (0,), (1,), (0, 0), (0, 1), (1, 0))
    ]
    assert len({call.tobytes() for call in calls}) == len(calls)


def test_negative_and_large_seeds_are_taken_modulo_64_bits() -> None:
    np.testing.assert_array_equal(bits(4, seed=-1), bits(4, seed=2**64 - 1))


def test_bits_look_random() -> None:
    sample = np.concatenate([bits(1000, step=(step,)) for step in range(20)])
    ones = np.unpackbits(sample.view(np.uint8)).reshape(-1, 32).mean(0)
    assert np.abs(ones - 0.5).max() < 0.02
    assert len(np.unique(sample)) > len(sample) - 5
    first = np.array([int(key_of(0, "a", (step,))[0]) for step in range(1000)])
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.15
