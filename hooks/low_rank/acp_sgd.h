#ifndef COXSWAIN_HOOKS_LOW_RANK_ACP_SGD_H_
#define COXSWAIN_HOOKS_LOW_RANK_ACP_SGD_H_

#include "hooks/hook_row.h"

namespace coxswain {

// `acp_sgd`: one factor of a low-rank gradient per step, so that one
// all-reduce is enough (Zhang, Zhang, Shi, Chu, Li: "Evaluation and
// Optimization of Gradient Compression for Distributed Deep Learning", ICDCS
// 2023).
//
// Which gradients are matrices to compress, and n, m, r: as in powersgd.h.
// With W ranks, in step t >= start_step:
//   X = G + E                          this rank's gradient and error
//   t odd:   Q = orth(Q);  p = X Q;               P = mean(p);  E = X - p Q'
//   t even:  P = orth(P);  q = transpose(X) P;    Q = mean(q);  E = X - P q'
// and the result is P Q', where ' is the transpose. Raw tensors travel in the
// same all-reduce, are averaged exactly and have no error. A factor that is
// not there yet is drawn from (seed, name, t). Steps before start_step are
// plain averages.
//
// E is not computed in its step but in the next, as in powersgd.h: per element
// of a float32 matrix a step reads G and X and writes X (12 bytes), and writes
// the result (4); a rollback moves no byte.
//
// Not finite: as in powersgd.h; the report takes a second collective, in such
// a step only.
//
// State: as powersgd's, with P and Q.
HookRow AcpSgdRow();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_ACP_SGD_H_
