"""Data on the way forward in time: what those so far say of the state.

The solver's posterior is a Markov chain back in time, with the kernels that its filtering states
``N(m_n, P_n)`` leave behind (:mod:`probode.filter.smooth`)::

    x_(n-1) = m_(n-1) + G (x_n - A m_(n-1)) + e,      e ~ N(0, Λ)

What the data up to ``t_n`` say of ``x_n`` under this chain is a *message*::

    log p(u_1, ..., u_k | x_n) = l - ½ |V (x_n - m_n) - w|²

It goes on to the next state with ``FᵀF = I + V Λ Vᵀ``, takes in a datum ``B (x_n - m_n) = b`` of
unit noise with one QR, and turns the filtering state into the one that has seen the data too::

    V ← F⁻ᵀ V G        w ← F⁻ᵀ (w - V G (m_n - A m_(n-1)))        l ← l - log|F|
    [V w] and [B b], stacked  =  Q [V w; 0 r]                     l ← l - ½ r²
    N(m_n, P_n) given V (x_n - m_n) = w, with unit noise

Nothing of the equation is needed for it but the states that a solve has kept. After the last of
them, the integral of the message over the state is the likelihood of the data, Fenrir's.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from probode.base.record import record
from probode.filter.dense import dense, widened
from probode.filter.loop import Rows
from probode.filter.smooth import Marginals, backward_kernel
from probode.filter.step import Method
from probode.model import gaussian
from probode.model.gaussian import solve_transposed, triangularize


@record
class Message:
    """What the data so far say of a state; ``V`` is in the coordinates of the state's row."""

    matrix: Float[Array, "m m"]
    """``V``"""
    value: Float[Array, " m"]
    """``w``"""
    constant: Array
    """``l``"""

    @staticmethod
    def empty(method: Method) -> "Message":
        """No data yet."""
        size = method.structure.n * method.structure.d
        return Message(jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(()))

    def rescaled(self, method: Method, h: Array, h_new: Array) -> "Message":
        """From the coordinates ``T(h)`` to ``T(h_new)``."""
        change = dense(method).structure.spread(method.prior.powers(h_new / h))
        return replace(self, matrix=self.matrix * change)

    def with_datum(
        self, method: Method, h: Array, datum: Float[Array, "r k"], constant: Array
    ) -> "Message":
        """With ``[B b]``, rows in plain units for ``(y, ..., y^(k-1))``."""
        size, seen = self.value.shape[0], datum.shape[-1] - 1
        coords = dense(method).structure.spread(method.prior.coordinates(h))
        rows = jnp.zeros((datum.shape[0], size)).at[:, :seen].set(datum[:, :-1] * coords[:seen])
        own = jnp.concatenate([self.matrix, self.value[:, None]], axis=-1)
        new = jnp.concatenate([rows, datum[:, -1:]], axis=-1)
        r = triangularize(jnp.concatenate([own, new]))
        constant = self.constant + constant - 0.5 * r[size, size] ** 2
        return Message(r[:size, :size], r[:size, size], constant)


def hear(
    method: Method,
    rows: Rows,
    data: Float[Array, "N r k"],
    constants: Float[Array, " N"],
    count: Array,
    message: Message,
    spread: Array,
) -> tuple[Marginals, Message, Array]:
    """Rows ``0 .. count-1`` given the data up to each, and the message for row ``count``.

    ``message`` is what earlier data say of row 0; ``data`` are rows ``[B b]`` of unit noise, zero
    where there are none, and ``constants`` what their log density has besides. ``spread²`` is the
    factor of all covariances. Also returned is the log likelihood of the data up to the last row.
    """
    thick = dense(method)
    structure = thick.structure
    size = structure.n * structure.d
    unit = jnp.eye(size)

    def given(i: Array, message: Message) -> tuple[Marginals, Array]:
        """The filtering state of row ``i`` given the data, and their log likelihood."""
        factor, scaled = widened(method, rows.factor[i]), spread * message.matrix.T
        found = gaussian.condition(factor, factor @ scaled, -message.value[:, None], unit)
        coords = method.prior.coordinates(rows.h[i])[:, None]
        mean = rows.mean[i] - spread * coords * structure.join(found.correction)
        total = message.constant - 0.5 * jnp.sum(found.whitened**2)
        return Marginals(mean, found.factor), total - jnp.sum(jnp.log(jnp.abs(found.pivots)))

    def through(i: Array, message: Message) -> Message:
        """The message for row ``i + 1``; rows that repeat a time have the same state."""
        h = rows.t[i + 1] - rows.t[i]
        still = h == 0.0
        length, scale, whole = jnp.where(still, 1.0, h), rows.scale[i + 1], rows.whole_at(i + 1)
        kernel = backward_kernel(method, rows.at(i), length, scale, rows.at(i + 1), whole)
        here = message.rescaled(method, rows.h[i], kernel.h)
        noise = spread * widened(method, kernel.factor) @ here.matrix.T
        noise = triangularize(jnp.concatenate([noise, unit]), size)
        gain = here.matrix @ widened(method, kernel.gain_transposed).T
        coords = method.prior.coordinates(kernel.h_after)[:, None]
        ahead = structure.cut((rows.mean[i + 1] - kernel.center) / coords)[:, 0]
        moved = Message(
            solve_transposed(noise, gain),
            solve_transposed(noise, (here.value - gain @ ahead)[:, None])[:, 0],
            here.constant - jnp.sum(jnp.log(jnp.abs(jnp.diagonal(noise)))),
        ).rescaled(method, kernel.h_after, rows.h[i + 1])
        same = message.rescaled(method, rows.h[i], rows.h[i + 1])
        coords = method.prior.coordinates(rows.h[i + 1])[:, None]
        ahead = structure.cut((rows.mean[i + 1] - rows.mean[i]) / coords)[:, 0]
        same = replace(same, value=same.value - same.matrix @ ahead)
        return jax.tree.map(lambda a, b: jnp.where(still, a, b), same, moved)

    def body(i: Array, carry: tuple[Marginals, Message, Array]) -> tuple[Marginals, Message, Array]:
        buffer, message, _ = carry
        message = jax.lax.cond(
            jnp.any(data[i] != 0.0) | (constants[i] != 0.0),
            lambda: message.with_datum(method, rows.h[i], data[i], constants[i]),
            lambda: message,
        )
        found, total = given(i, message)
        buffer = jax.tree.map(lambda xs, x: xs.at[i].set(x), buffer, found)
        return buffer, through(i, message), total

    capacity = rows.t.shape[0]
    buffer = Marginals(
        jnp.zeros((capacity, structure.n, structure.d)), jnp.zeros((capacity, size, size))
    )
    return jax.lax.fori_loop(0, count, body, (buffer, message, jnp.zeros(())))
