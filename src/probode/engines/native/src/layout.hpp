// How a solve lies in memory: three vectors of doubles, shared with `layout.py`.
//
// settings   what does not change within a chunk of steps
// state      what a step changes; begins with what the vector field needs: t_next and, predicted there, y (and y')
// rows       one row per accepted step: (t, h, scale, mean, factor); factors are upper triangular, and
//            only their triangles are kept, row by row
#pragma once

namespace probode {
namespace PROBODE_ISA {

enum Structure { kIsotropic = 0, kBlockDiagonal = 1, kDense = 2 };
enum Control { kProportional = 0, kIntegral = 1, kConstantStep = 2, kGrid = 3 };
enum JacobianKind { kNone = 0, kDiagonal = 1, kFull = 2 };

struct Settings {
  Structure structure;
  int n, d;
  int determined;  // the derivative that the equation determines from those below, its order: 1 or 2
  JacobianKind jacobian;
  int evaluations;  // of the vector field in an accepted step: 1 or 2
  Control control;
  bool fixed, multivariate, damped, keep;
  bool correction;  // whether a step is judged by what its update moves y by, too: first order and dense
  double t1, rho, eta_min, eta_max, min_step, max_step, integral, proportional;
  long wanted, last_attempt;
  double seconds;
  int running, success, step_too_small, not_finite;
  double start, size;  // of constant steps
  long points;         // of a grid
  const double *rtol, *atol, *transition, *noise, *weights, *grid;

  explicit Settings(const double* x) {
    structure = static_cast<Structure>(static_cast<int>(x[0]));
    n = static_cast<int>(x[1]);
    d = static_cast<int>(x[2]);
    jacobian = static_cast<JacobianKind>(static_cast<int>(x[3]));
    fixed = x[4] != 0.0;
    multivariate = x[5] != 0.0;
    evaluations = static_cast<int>(x[6]);
    damped = x[7] != 0.0;
    determined = static_cast<int>(x[8]);
    correction = x[9] != 0.0;
    control = static_cast<Control>(static_cast<int>(x[10]));
    running = static_cast<int>(x[11]);
    success = static_cast<int>(x[12]);
    step_too_small = static_cast<int>(x[13]);
    not_finite = static_cast<int>(x[14]);
    t1 = x[15];
    rho = x[16];
    eta_min = x[17];
    eta_max = x[18];
    min_step = x[19];
    max_step = x[20];
    integral = x[21];
    proportional = x[22];
    wanted = static_cast<long>(x[23]);
    last_attempt = static_cast<long>(x[24]);
    seconds = x[25];
    keep = x[26] != 0.0;
    start = x[27];
    size = x[28];
    points = static_cast<long>(x[29]);
    rtol = x + 30;
    atol = rtol + reads();
    transition = atol + reads();
    noise = transition + n * n;
    weights = noise + n * n;
    grid = weights + n;
  }

  int order() const { return n - 1; }
  long reads() const { return static_cast<long>(determined) * d; }  // numbers that f takes; their errors are controlled
  int scales() const { return multivariate && !fixed ? d : 1; }  // process noises per step
  int sums() const { return multivariate ? d : 1; }              // numbers per sum of the evidence
  long state_size() const { return static_cast<long>(n) * d; }
  // A block is what one decomposition deals with: `width` components of the `n` derivatives.
  int blocks() const { return structure == kBlockDiagonal ? d : 1; }
  int width() const { return structure == kDense ? d : 1; }
  int block_size() const { return n * width(); }
  long factor_size() const { return static_cast<long>(blocks()) * block_size() * block_size(); }
  long row_size() const { return 2 + scales() + state_size() + factor_size(); }
  long block_triangle() const { return static_cast<long>(block_size()) * (block_size() + 1) / 2; }
  long triangle_size() const { return blocks() * block_triangle(); }
  long kept_size() const { return 2 + scales() + state_size() + triangle_size(); }
};

// Row `r` of a triangle, such that its entry `c >= r` is found at index `c`.
inline double* triangle_row(double* triangle, int size, int r) {
  return triangle + static_cast<long>(r) * size - static_cast<long>(r) * (r + 1) / 2;
}

inline const double* triangle_row(const double* triangle, int size, int r) {
  return triangle_row(const_cast<double*>(triangle), size, r);
}

// A row: where a step ended. The factor is a square in the state, a triangle among the rows kept.
struct Row {
  double* t;
  double* h;
  double* scale;
  double* mean;
  double* factor;

  Row(double* t, double* h, double* scale, double* mean, double* factor)
      : t(t), h(h), scale(scale), mean(mean), factor(factor) {}
  Row(const Settings& s, double* x)
      : t(x), h(x + 1), scale(x + 2), mean(scale + s.scales()), factor(mean + s.state_size()) {}
};

struct State {
  double* predicted;  // (n, d); begins with what the vector field takes next
  double *t_next, *step, *error, *control_accepted, *rejected, *status, *attempted, *accepted;
  double *reference, *count, *deadline;
  double *evidence_steps, *squares, *log_det, *terms;
  // With two evaluations in a step: whether the second is waited for, the first, and the gain that
  // corrects with both, per block. Where a step may be linearised again: how often that was, the y' to which the first
  // linearisation leads, and the y predicted (`predicted` then begins with where it leads).
  double *waiting, *again, *first_slope, *gain;
  Row row;

  State(const Settings& s, double* x) : row(s, x + row_offset(s)) {
    t_next = x;
    predicted = x + 1;
    double* rest = predicted + s.state_size();
    step = rest;
    error = rest + 1;
    control_accepted = rest + 2;
    rejected = rest + 3;
    status = rest + 4;
    attempted = rest + 5;
    accepted = rest + 6;
    reference = rest + 7;
    count = rest + 8;
    deadline = rest + 9;
    evidence_steps = rest + 10;
    squares = rest + 11;
    log_det = squares + s.sums();
    terms = log_det + s.sums();
    waiting = terms + s.sums();
    again = waiting + 1;
    first_slope = again + 1;
    gain = first_slope + s.d;
  }

  static long row_offset(const Settings& s) {
    const long gain = s.evaluations == 2 ? static_cast<long>(s.n) * s.blocks() : s.d;
    const long between = s.evaluations == 2 || s.correction ? 2 + s.d + gain : 0;
    return 1 + s.state_size() + 11 + 3L * s.sums() + between;
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
