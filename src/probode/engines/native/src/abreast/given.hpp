// What is given of members abreast, and where their results go: the same for kernels and cards.
#pragma once

namespace probode {

// What may change without another program: of the control, and of the transport.
struct Options {
  double rho, eta_min, eta_max, min_step, max_step, integral, proportional, last_attempt;
  double left_over, most_iterations, first_credit, credit, rounding, early, shrinks, look, most_sweeps, reach, patience;
  double harmless, doubt, windows[4];
};

// Arrays of the members, and how far it is from one member to the next: zero where all have the same.
struct Given {
  const double *t0, *t1, *y0, *rtol, *atol, *numbers, *save_at;
  long t0_stride, t1_stride, y0_stride, rtol_stride, atol_stride, numbers_stride, save_stride;
  long rtol_component, atol_component;  // one, or zero for a number that holds for all components
  long times, count;                 // save points, members
  double *mean, *std, *cov, *notes;  // cov may be null; notes have a row for each of their kinds
  const int* order;                  // in which members are solved, or null: as they are
};

// status, attempted, accepted; of the transport: corrections, repeats, three signs, and whether it was lost
constexpr int kNotes = 9;

}  // namespace probode
