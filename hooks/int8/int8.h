#ifndef COXSWAIN_HOOKS_INT8_INT8_H_
#define COXSWAIN_HOOKS_INT8_INT8_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/reduce/hook.h"
#include "hooks/hook_row.h"
#include "hooks/options.h"

namespace coxswain {

// `int8`: gradients and their average travel as 8-bit codes, in a quantised
// reduce-scatter followed by a quantised all-gather, with error feedback on
// both. (Two stages with an error each are those of Tang et al.: "1-bit Adam",
// ICML 2021, which sends signs.)
//
// A bucket is cut into W slices, one per rank, of equally many blocks of
// `block` elements; zeros fill the last ones. Each block has a scale, the
// largest magnitude over 127, and codes from -127 to 127 that are rounded to
// nearest even (hooks/kernels/quantise.h). In a step with W ranks:
//   X = G + E1           this rank's gradient and error
//   c = quantised(X);    E1 = X - c
//   an all-to-all brings the slices of all ranks' c to their owners
//   Y = sum(c) / W + E2  by the owner, in order of rank
//   d = quantised(Y);    E2 = Y - d
//   an all-gather brings d to all; it is the result
// so that all ranks decode the same bytes. Steps before start_step are plain
// averages. Nothing has to settle before the first compressed step (there is
// no subspace to find), hence start_step is 0 by default.
//
// What a step leaves out is sent later: over time, the sum of the results
// differs from that of the averages by no more than mean(E1) + E2, which is
// at most about scale / 2 each. Not fed back: roundings of G + E1, of the sum
// over the ranks, and of the result to a 16-bit gradient's type.
//
// Computed in float32 for float32 and 16-bit gradients, in float64 for float64;
// scales are float32 always. So float64 gradients beyond about 3e38 overflow,
// and where all of a block are below about 1e-36, nothing is sent before the
// errors have added up to more.
//
// On slices (Hook::PrepareSlice) the first stage is all there is: the owner of
// a slice keeps sum(c) / W, which no rank rounds again, and E2 is none; what
// earlier steps left of it is added to E1 as where the owner changes. Of the
// bytes, 1/W and the 4-byte flags go to each rank. In a GPU's memory the bucket
// is exchanged in full.
//
// Not finite: a scale that is NaN reaches all ranks with the average. The
// bucket is NaN on all of them then, its errors stay as they were, and one
// more all-reduce, of W int32, finds out whose gradient it was.
//
// Buckets on a GPU are exchanged there, with the same bits, in one go on the
// communicator's stream; their errors stay there (int8_exchange.h). What
// is saved and loaded is the same, so a run may go on on either.
//
// State: E1 on each rank, E2 of a parameter's element on the rank that owned
// its slice. When an element changes its owner, because of other buckets or
// another world size, the old one adds W E2 to its E1: later averages have the
// same share of it, and nothing is sent. Staged beside the current one, so a
// rollback costs no bytes.
//
// Checkpoints hold every rank's error, W times the model: unlike powersgd's
// results, these depend on more than the errors' mean. Restored on as many
// ranks and with the same buckets, a run goes on bit by bit; with other
// buckets, results differ by a quantisation step, but the errors are all
// there. On another world size every rank gets the mean of the errors: what
// was left out is still sent in full, but the rounding of single steps
// differs.
//
// LoadOwn with W'/W multiplies E1 by that and leaves E2: its share of later
// sums becomes W' E2 by itself. With another scale s, E2 is multiplied by
// s W / W', so that all of E1 + W E2 has been scaled by s.

HookRow Int8Row();

// `options` are of the row's table.
std::unique_ptr<Hook> MakeInt8Hook(std::string spec, OptionValues options);

// Blocks of a slice, of a bucket of `count` elements.
int64_t Int8SliceBlocks(int64_t count, int world_size, int64_t block);

// What a rank hands to the collectives of such a bucket: W slices to the
// all-to-all, one to the all-gather.
int64_t Int8PayloadBytes(int64_t count, int world_size, int64_t block);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_INT8_INT8_H_
