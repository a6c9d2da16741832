#include <memory>

#include "hooks/kernels/cuda/orthogonalise.h"
#include "hooks/kernels/cuda/quantise.h"
#include "tests/gpu/kernel_cases.h"

namespace coxswain::gpu {
namespace {

int64_t BlocksOf(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// A table of one run.
template <typename T>
Array<QuantiseEntry> AddRun(Case* one, Array<unsigned char> gradient,
                            ElementType type, Array<T> error, int64_t count) {
  return one->AddTable<QuantiseEntry>(2, [=](unsigned char* base) {
    QuantiseRun<T> run;
    run.gradient = gradient.in(base);
    run.type = type;
    run.error = error.in(base);
    run.remainder = error.in(base);
    run.count = count;
    return QuantiseTable<T>({run});
  });
}

int64_t Entries(int64_t count) { return count > 0 ? 1 : 0; }

template <typename T>
Case QuantiseOf(const Elements& elements, int64_t size) {
  Case one(NameOf("quantise by " + std::to_string(size), elements));
  const auto gradient = AddElements(&one, elements);
  const auto error = one.Add<T>(
      elements.count, Fill::kRandom,
      sizeof(T) == 4 ? Content::kFloat32 : Content::kFloat64, elements.shift);
  const auto table =
      AddRun<T>(&one, gradient, elements.type, error, elements.count);
  const int64_t blocks = BlocksOf(elements.count, size);
  // A scale that is NaN has bits of its own.
  const auto out = one.Add<uint8_t>(
      QuantisedBytes(blocks, size), Fill::kPoison,
      elements.fill == Fill::kSpecial ? Content::kIgnored : Content::kBytes);
  const auto flag = one.Add<int32_t>(1, Fill::kPoison, Content::kBytes);
  const double per_element =
      static_cast<double>(SizeOf(elements.type) + 2 * sizeof(T) + 1);
  one.Do(
      [=](LaunchTarget* target, unsigned char* base) {
        EnqueueQuantise<T>(target, {table.in(base), Entries(elements.count)},
                           elements.type, size, blocks, out.in(base),
                           flag.in(base));
      },
      per_element * static_cast<double>(elements.count),
      static_cast<double>(elements.count));
  return one;
}

template <typename T>
Case QuantiseMeanOf(const Elements& elements, int64_t size, int ranks) {
  Case one(NameOf("mean of " + std::to_string(ranks) + " quantised by " +
                      std::to_string(size),
                  elements));
  const int64_t blocks = BlocksOf(elements.count, size);
  const int64_t stride = QuantisedBytes(blocks, size);
  const auto content = sizeof(T) == 4 ? Content::kFloat32 : Content::kFloat64;
  const auto gradient = AddElements(&one, elements);
  const auto error = one.Add<T>(elements.count, Fill::kRandom, content);
  const auto table =
      AddRun<T>(&one, gradient, elements.type, error, elements.count);
  const auto remainder = one.Add<T>(elements.count, Fill::kZero, content);
  const auto mean_table = one.AddTable<QuantiseEntry>(2, [=](unsigned char* b) {
    QuantiseRun<T> run;
    run.type = sizeof(T) == 4 ? ElementType::kFloat32 : ElementType::kFloat64;
    run.error = remainder.in(b);
    run.remainder = remainder.in(b);
    run.count = elements.count;
    return QuantiseTable<T>({run});
  });
  const auto received =
      one.Add<uint8_t>(stride * ranks, Fill::kPoison, Content::kBytes);
  const auto out = one.Add<uint8_t>(stride, Fill::kPoison, Content::kBytes);
  const auto mean_of = [=](LaunchTarget* target, unsigned char* base) {
    for (int rank = 0; rank < ranks; ++rank) {
      EnqueueQuantise<T>(target, {table.in(base), Entries(elements.count)},
                         elements.type, size, blocks,
                         received.in(base) + rank * stride);
    }
    EnqueueQuantiseMean<T>(target, received.in(base), stride, ranks,
                           {mean_table.in(base), Entries(elements.count)}, size,
                           blocks, out.in(base));
  };
  one.Do(mean_of);
  return one;
}

Content ContentOfSums(bool wide) {
  return wide ? Content::kFloat64 : Content::kFloat32;
}

// What a matrix of a low-rank case has.
template <typename T>
struct MatrixArrays {
  Array<unsigned char> gradient;
  Array<T> x, p, q, own_q;
};

template <typename T>
Case LowRankOf(const std::string& name, ElementType gradients,
               const std::vector<LowRankShape>& shapes,
               const std::vector<int64_t>& raws, const LowRankParts& parts) {
  Case one(name);
  const Content content = ContentOfSums(sizeof(T) == 8);
  std::vector<MatrixArrays<T>> arrays;
  double elements = 0;
  for (const LowRankShape& shape : shapes) {
    const int64_t count = shape.n * shape.m;
    elements += static_cast<double>(count);
    MatrixArrays<T> matrix;
    matrix.gradient = AddElements(&one, {gradients, count, 0, Fill::kRandom});
    matrix.x = one.Add<T>(count, Fill::kRandom, content);
    matrix.p = one.Add<T>(shape.n * shape.r, Fill::kRandom, content);
    matrix.q = one.Add<T>(shape.m * shape.r, Fill::kRandom, content);
    matrix.own_q = one.Add<T>(shape.m * shape.r, Fill::kPoison, content);
    arrays.push_back(matrix);
  }
  std::vector<MatrixArrays<T>> raw_arrays;
  for (const int64_t count : raws) {
    MatrixArrays<T> raw;
    raw.gradient = AddElements(&one, {gradients, count, 0, Fill::kRandom});
    raw.x = one.Add<T>(count, Fill::kRandom, content);
    raw.p = one.Add<T>(count, Fill::kRandom, content);
    raw_arrays.push_back(raw);
  }
  const auto plan =
      std::make_shared<LowRankPlan>(PlanLowRank(shapes, raws, sizeof(T)));
  const auto tiles =
      one.AddTable<LowRankTile>(static_cast<int64_t>(plan->tiles.size()),
                                [plan](unsigned char*) { return plan->tiles; });
  const auto matrices = one.AddTable<DeviceLowRankMatrix<T>>(
      static_cast<int64_t>(shapes.size()), [=](unsigned char* base) {
        std::vector<DeviceLowRankMatrix<T>> table;
        for (size_t i = 0; i < shapes.size(); ++i) {
          DeviceLowRankMatrix<T> matrix;
          matrix.n = shapes[i].n;
          matrix.m = shapes[i].m;
          matrix.r = shapes[i].r;
          matrix.gradient = arrays[i].gradient.in(base);
          matrix.previous = arrays[i].x.in(base);
          matrix.x = arrays[i].x.in(base);
          matrix.first_q = arrays[i].q.in(base);
          matrix.p = arrays[i].p.in(base);
          matrix.q = arrays[i].q.in(base);
          matrix.own_q = arrays[i].own_q.in(base);
          table.push_back(matrix);
        }
        return table;
      });
  const auto raw_table = one.AddTable<DeviceRawTensor<T>>(
      static_cast<int64_t>(raws.size()), [=](unsigned char* base) {
        std::vector<DeviceRawTensor<T>> table;
        for (size_t i = 0; i < raws.size(); ++i) {
          DeviceRawTensor<T> raw;
          raw.count = raws[i];
          raw.gradient = raw_arrays[i].gradient.in(base);
          raw.error = raw_arrays[i].x.in(base);
          raw.x = raw_arrays[i].x.in(base);
          raw.sent = raw_arrays[i].p.in(base);
          table.push_back(raw);
        }
        return table;
      });
  const auto partials = one.Add<T>(plan->partials, Fill::kPoison, content);
  const auto poisoned = one.Add<uint32_t>(1, Fill::kZero, Content::kBytes);
  const double moved = (parts.take ? 12.0 : 0) + (parts.project ? 4.0 : 0) +
                       (parts.finish ? 4.0 : 0);
  one.Do(
      [=](LaunchTarget* target, unsigned char* base) {
        DeviceLowRank<T> on;
        on.plan = plan.get();
        on.tiles = tiles.in(base);
        on.matrices = matrices.in(base);
        on.raws = raw_table.in(base);
        on.partials = partials.in(base);
        on.poisoned = poisoned.in(base);
        on.gradient_type = gradients;
        if (parts.take) TakeOnDevice<T>(target, on, 2);
        if (parts.project) ProjectOnDevice<T>(target, on, 2);
        for (size_t i = 0; i < shapes.size() && parts.finish; ++i) {
          if (!parts.take) break;
          CheckOnDevice<T>(target, arrays[i].q.in(base),
                           shapes[i].m * shapes[i].r, 2, poisoned.in(base));
        }
        if (parts.finish) {
          FinishOnDevice<T>(target, on, 2, PoisonedGradients::kLeave);
        }
      },
      moved * elements * sizeof(T) / 4, elements);
  return one;
}

template <typename T>
Case OrthogonaliseOf(bool drawn, const std::vector<LowRankShape>& shapes) {
  Case one(std::string("orthogonalise ") + (drawn ? "drawn " : "") +
           (sizeof(T) == 8 ? "float64" : "float32"));
  const Content content = ContentOfSums(sizeof(T) == 8);
  std::vector<TallShape> tall;
  std::vector<Array<T>> from, to;
  double elements = 0;
  for (const LowRankShape& shape : shapes) {
    tall.push_back({shape.n, shape.r});
    const int64_t count = shape.n * shape.r;
    elements += static_cast<double>(count);
    from.push_back(one.Add<T>(count, Fill::kRandom, content));
    to.push_back(one.Add<T>(count, Fill::kPoison, content));
  }
  const auto plan =
      std::make_shared<TallPlan>(PlanOrthogonalise(tall, sizeof(T)));
  const auto strips =
      one.AddTable<TallStrip>(static_cast<int64_t>(plan->strips.size()),
                              [plan](unsigned char*) { return plan->strips; });
  const auto matrices = one.AddTable<DeviceTallMatrix<T>>(
      static_cast<int64_t>(shapes.size()), [=](unsigned char* base) {
        std::vector<DeviceTallMatrix<T>> table;
        for (size_t i = 0; i < shapes.size(); ++i) {
          DeviceTallMatrix<T> matrix;
          if (!drawn) matrix.from = from[i].in(base);
          matrix.to = to[i].in(base);
          matrix.n = shapes[i].n;
          matrix.r = shapes[i].r;
          matrix.stream = i;
          matrix.redraw = drawn ? 1 : 0;
          table.push_back(matrix);
        }
        return table;
      });
  const auto partials =
      one.Add<double>(plan->partials, Fill::kPoison,
                      drawn ? Content::kIgnored : Content::kFloat64);
  const auto step = one.Add<uint64_t>(1, Fill::kZero, Content::kBytes);
  one.Do(
      [=](LaunchTarget* target, unsigned char* base) {
        DeviceTall<T> on;
        on.plan = plan.get();
        on.strips = strips.in(base);
        on.matrices = matrices.in(base);
        on.partials = partials.in(base);
        on.seed = 7;
        on.step = step.in(base);
        on.redraws = drawn;
        OrthogonaliseOnDevice<T>(target, on);
      },
      3.0 * sizeof(T) * elements, elements);
  return one;
}

}  // namespace

Case QuantiseCase(const Elements& elements, int64_t size) {
  return elements.type == ElementType::kFloat64
             ? QuantiseOf<double>(elements, size)
             : QuantiseOf<float>(elements, size);
}

Case QuantiseMeanCase(const Elements& elements, int64_t size, int ranks) {
  return elements.type == ElementType::kFloat64
             ? QuantiseMeanOf<double>(elements, size, ranks)
             : QuantiseMeanOf<float>(elements, size, ranks);
}

Case DequantiseCase(const Elements& elements, int64_t size) {
  Case one(NameOf("dequantise by " + std::to_string(size), elements));
  const int64_t blocks = BlocksOf(elements.count, size);
  // Any bytes are codes and scales; of scales that are NaN it looks for one.
  const auto in = one.Add<uint8_t>(QuantisedBytes(blocks, size), Fill::kRandom,
                                   Content::kBytes);
  Elements output = elements;
  output.fill = Fill::kPoison;
  const auto out = AddElements(&one, output);
  const auto found = one.Add<int32_t>(1, Fill::kZero, Content::kBytes);
  one.Do(
      [=](LaunchTarget* target, unsigned char* base) {
        EnqueueFindBadScale(target, in.in(base), size, blocks, found.in(base));
        EnqueueDequantise(target, in.in(base), size, elements.count,
                          out.in(base), elements.type);
      },
      static_cast<double>((SizeOf(elements.type) + 1) * elements.count),
      static_cast<double>(elements.count));
  return one;
}

Case FoldCase(const Elements& elements) {
  Case one(NameOf("fold", elements));
  const int64_t count = elements.count;
  const auto local =
      one.Add<float>(count, elements.fill, Content::kFloat32, elements.shift);
  const auto average = one.Add<float>(count, elements.fill, Content::kFloat32);
  const auto table =
      one.AddTable<FoldEntry<float>>(2, [=](unsigned char* base) {
        FoldEntry<float> entry;
        entry.local = local.in(base);
        entry.to = local.in(base);
        entry.average = average.in(base);
        entry.end = count;
        FoldEntry<float> end;
        end.first = count;
        return std::vector<FoldEntry<float>>{entry, end};
      });
  one.Do(
      [=](LaunchTarget* target, unsigned char* base) {
        EnqueueFold<float>(target, table.in(base), 1, count, 0.5f);
      },
      12.0 * static_cast<double>(count), static_cast<double>(count));
  return one;
}

Case FindNonFiniteCase(const Elements& elements) {
  Case one(NameOf("find non-finite", elements));
  const auto gradient = AddElements(&one, elements);
  const auto error = one.Add<float>(1, Fill::kZero, Content::kFloat32);
  const auto table =
      AddRun<float>(&one, gradient, elements.type, error, elements.count);
  const auto flags = one.Add<int32_t>(4, Fill::kZero, Content::kBytes);
  const auto by_rank = one.Add<int32_t>(3, Fill::kPoison, Content::kBytes);
  one.Do(
      [=](LaunchTarget* target, unsigned char* base) {
        EnqueueFindNonFinite(target, {table.in(base), Entries(elements.count)},
                             elements.type, 1, 3, flags.in(base),
                             by_rank.in(base));
      },
      static_cast<double>(SizeOf(elements.type)) *
          static_cast<double>(elements.count),
      static_cast<double>(elements.count));
  return one;
}

Case LowRankCase(const std::string& name, ElementType gradients, bool wide,
                 const std::vector<LowRankShape>& shapes,
                 const std::vector<int64_t>& raws, const LowRankParts& parts) {
  return wide ? LowRankOf<double>(name, gradients, shapes, raws, parts)
              : LowRankOf<float>(name, gradients, shapes, raws, parts);
}

Case OrthogonaliseCase(bool wide, bool drawn,
                       const std::vector<LowRankShape>& shapes) {
  return wide ? OrthogonaliseOf<double>(drawn, shapes)
              : OrthogonaliseOf<float>(drawn, shapes);
}

}  // namespace coxswain::gpu
