// Compiled once per instruction set, as kernels.cc is, with all optimisations: passes over long vectors.
#include "two_pole.hpp"

namespace probode {
namespace PROBODE_ISA {

Machine* new_two_pole(const double* numbers, const double* atol, const double* rtol, const double* x) {
  return new TwoPole(numbers, atol, rtol, x);
}

Factors* new_front_factors(const std::shared_ptr<const FrontPlan>& plan, const double* entries) {
  auto made = std::make_unique<FrontFactors>(plan, std::make_shared<Vectors>(plan->numbers));
  return made->factorise(entries) ? made.release() : nullptr;
}

}  // namespace PROBODE_ISA
}  // namespace probode
