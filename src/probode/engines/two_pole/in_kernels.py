"""Chunks of steps that the kernels take (:mod:`probode.engines.two_pole.machine`)."""

from typing import Any, NamedTuple

import jax
import numpy as np

from probode.base.status import Status
from probode.engines.kept import pack_rows
from probode.engines.native.library import available
from probode.engines.protocol import Carry, Given
from probode.engines.two_pole.linear import Direct
from probode.engines.two_pole.machine import Known, Machine
from probode.engines.two_pole.rows import as_row, as_rows, as_solve
from probode.engines.two_pole.step import Standing
from probode.filter.control import PControl
from probode.filter.loop import Rows
from probode.filter.step import Method


class Form(NamedTuple):
    """A solve between two chunks."""

    machine: Machine
    known: Known
    follower: Any
    """What the error is carried for, if it is."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """``t, h``, the noise, the standard deviation, the order."""
        known = self.known
        return known.t, known.h, known.noise, known.std, known.order

    def after(self, known: Known) -> "Form":
        """Of the machine as it has gone on."""
        return self._replace(known=known)

    @property
    def waiting(self) -> "Waiting | None":
        """What goes along, for those who come after the steps."""
        return None if self.follower is None else Waiting(self.machine, self.follower)


class Waiting(NamedTuple):
    """What goes along with the steps, while the kernels carry it."""

    machine: Machine
    follower: Any
    """The one that they do it for."""
    goes_on: bool = True
    """Whether the machine may be asked for further steps."""

    def finished(self) -> Any:
        """With the error up to here."""
        machine = self.machine.copy() if self.goes_on else self.machine
        return self.follower.found_by_kernels(machine.finished())


def takes(given: Given) -> bool:
    """Whether the kernels take the steps.

    Not given ones, over switches, or to be stored between chunks.
    """
    control = given.inputs.control
    if given.large.stored:
        return False
    plain = isinstance(control, PControl) and control.stops is None
    direct = isinstance(given.large.system.linear, Direct)
    return available() and plain and direct and not len(given.restarts.before)


def begun(given: Given, standing: Standing) -> Form:
    """Before the first step."""
    system, follower = given.large.system, given.large.follower
    scheme = None if follower is None else follower.scheme
    inputs = given.inputs
    machine = Machine.start(system, inputs.control, float(inputs.t1), standing, scheme)
    return Form(machine, machine.known(), follower)


def filled(method: Method, carry: Carry, attempts: int, wanted: int) -> tuple[Carry, Rows]:
    """Until ``wanted`` steps are accepted (none: any number, of which no row is kept)."""
    form: Form = carry.form
    first = row_of(method, form)
    if not wanted:
        following = form.after(form.machine.run(attempts))
        return carry_of(method, following), pack_rows(_stacked([first]))
    n, d = method.structure.n, method.structure.d
    machine = form.machine.copy()  # the same steps may be wanted again from the same carry
    means, numbers = np.empty((wanted + 1, n, d)), np.empty((wanted + 1, 5))
    means[0], numbers[0] = first.mean, form.numbers
    known = machine.run(attempts, (means, numbers))
    count = known.taken + 1
    following = Form(machine, known, form.follower)
    rows = as_rows(method, numbers[:count], means[:count])
    return carry_of(method, following), pack_rows(rows)


def carry_of(
    method: Method, form: Form, status: Status | None = None, room: np.ndarray | None = None
) -> Carry:
    """For those who look at a solve between two chunks; ``room`` is for its derivatives."""
    known, row = form.known, row_of(method, form, room)
    made = known.following, known.failures, known.counts
    return Carry(as_solve(method, row, *made, known.status if status is None else status), form)


def row_of(method: Method, form: Form, room: np.ndarray | None = None) -> Rows:
    """Where it stands."""
    return as_row(method, form.numbers, form.machine.row(room))


def step_of(method: Method, form: Form) -> Rows:
    """The last step: where it began (value and slope alone, if a time to be saved was inside)."""
    known, after = form.known, row_of(method, form)
    before = np.zeros_like(after.mean)
    before[:2] = form.machine.before()
    left = as_row(method, (known.before, *form.numbers[1:]), before)
    return pack_rows(_stacked([left, after]))


def _stacked(rows: list[Rows]) -> Any:
    return jax.tree.map(lambda *each: np.stack(each), *rows)
