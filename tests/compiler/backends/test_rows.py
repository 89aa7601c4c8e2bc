"""Rows of a table of 16-bit floats: equal to NumPy's, without a copy of the table."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.products import rows

TABLE = np.random.default_rng(0).normal(size=(300, 256))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (0,)])
def test_rows_equal_numpy(dtype: Any, shape: tuple[int, ...]) -> None:
    table, places = TABLE.astype(dtype), np.random.default_rng(1).integers(0, 300, shape).astype(np.int32)
    assert rows.pays(jnp.asarray(table))
    found = jax.jit(rows.taken)(table, places)
    np.testing.assert_array_equal(np.asarray(found), table[places])
    lanes = jax.jit(jax.vmap(rows.taken, (None, 0)))(table, np.stack([places, 299 - places]))
    np.testing.assert_array_equal(np.asarray(lanes), table[np.stack([places, 299 - places])])
    tables = np.stack([table, table[::-1]])
    several: Any = jax.vmap(rows.taken, (0, None))
    np.testing.assert_array_equal(np.asarray(several(tables, places)), tables[:, places])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_programs_read_rows_in_loops(dtype: str) -> None:
    """An index out of range reads the nearest row; the next index depends on what was read."""
    t, T = pr.dim("t")
    table = pr.input("table", (300, 256), (), dtype)
    at = pr.recurrent((), (t,), "int32")
    row = pr.take(table, at, 0)
    at[0] = 500
    at[t + 1] = pr.argmax(row) + 100 * pr.value(t % 3)
    outputs = {"at": at[0:T], "sum": row[0:T].cast("float32").sum(0)}
    given: dict[str, Any] = {"table": TABLE.astype(pr.evaluate(pr.zeros((), dtype)).dtype)}
    wanted = pr.evaluate(outputs, given, bounds={T: 9})
    found = pr.compile(outputs)(bounds={T: 9}, **given)
    np.testing.assert_array_equal(found["at"], wanted["at"])
    np.testing.assert_allclose(found["sum"], wanted["sum"], rtol=1e-5, atol=1e-5)


def test_the_table_is_not_copied() -> None:
    def steps(table: Any) -> Any:
        return jax.lax.fori_loop(0, 8, lambda n, total: total + rows.taken(table, n), jnp.zeros(256, jnp.bfloat16))

    compiled: Any = jax.jit(steps).lower(jax.ShapeDtypeStruct((5000, 256), jnp.bfloat16)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 100_000
    assert "f32[5000,256]" not in compiled.as_text()


def test_gradients_by_jax() -> None:
    table = jnp.asarray(TABLE, jnp.bfloat16)
    found = jax.grad(lambda x: (rows.taken(x, jnp.array([2, 2, 5])).astype(jnp.float32) ** 2).sum())(table)
    assert float(jnp.abs(found[2] - 4 * table[2]).max()) < 0.1
    assert not found[3].any()


def test_places_outside_are_refused() -> None:
    with pytest.raises(Exception, match="rows: a place outside"):
        jax.block_until_ready(jax.jit(rows.taken)(jnp.asarray(TABLE, jnp.bfloat16), jnp.array([300])))
