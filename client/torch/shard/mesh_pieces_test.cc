// Pieces of a model on meshes pp x dp x tp, without a coordinator's process:
// what the ranks save is each element of the whole once, and what one mesh has
// saved any other loads bit by bit.

#include <ATen/Parallel.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/checkpoint/fake_checkpoint_service.h"
#include "client/checkpoint/piece_checkpoint.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/rpc/member_context.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"
#include "client/torch/optimizer_state.h"
#include "client/torch/shard/model_pieces.h"
#include "client/torch/shard/piece_forms.h"
#include "client/torch/shard/sharded_optimizer.h"
#include "client/torch/tensor/parallel_linear.h"
#include "client/torch/tensor/vocab_parallel.h"
#include "client/torch/test_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch::mesh_pieces_test {
namespace {

using ::testing::HasSubstr;
using ::torch::Tensor;

constexpr int64_t kVocabulary = 11;
constexpr int64_t kFeatures = 6;
constexpr int64_t kInner = 7;
constexpr int64_t kSteps = 5;

// What an element of the whole model is, of a kind. That of a tie's second
// parameter is the first one's.
double ValueOf(const std::string& parameter, const std::string& kind,
               int64_t index) {
  const std::string& name =
      parameter == "head.weight" ? "embed.weight" : parameter;
  double seed = 0;
  for (const char c : name + kind) seed = seed * 1.3 + static_cast<double>(c);
  return std::abs(std::sin(seed + 0.1 * static_cast<double>(index)));
}

// Calls visit(i, index in the whole) for each element of a piece.
void ForEach(const TensorPiece& piece,
             const std::function<void(int64_t, int64_t)>& visit) {
  const TensorPiece whole =
      TensorPiece::Whole(piece.parameter, piece.kind, piece.dtype, piece.shape);
  for (const PieceRun& run : Intersect(whole, piece)) {
    for (int64_t i = 0; i < run.count; ++i) visit(run.to + i, run.from + i);
  }
}

void FillIn(const TensorPiece& piece, double* data) {
  ForEach(piece, [&](int64_t i, int64_t index) {
    data[i] = ValueOf(piece.parameter, piece.kind, index);
  });
}

// A norm with all that is not trained: a frozen parameter, and buffers, one of
// a type that no piece has.
struct Norm : ::torch::nn::Module {
  Norm() {
    norm = register_module(
        "norm",
        ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({kFeatures})));
    frozen = register_parameter("frozen", ::torch::zeros({3}),
                                /*requires_grad=*/false);
    mean = register_buffer("mean", ::torch::zeros({kFeatures}));
    to(::torch::kFloat64);
    flag = register_buffer("flag", ::torch::ones({1}, ::torch::kBool));
  }
  ::torch::nn::LayerNorm norm{nullptr};
  Tensor frozen, mean, flag;
};

template <typename T>
T Must(absl::StatusOr<T> value) {
  EXPECT_OK(value.status());
  return *std::move(value);
}

// The layers of some stages on a rank, under the names of the whole model.
struct Layers : ::torch::nn::Module {};

struct Made {
  std::shared_ptr<Layers> module = std::make_shared<Layers>();
  ParameterBoxes boxes;
};

Made MakeLayers(const TensorParallelPtr& parallel, bool first, bool last) {
  Made made;
  ::torch::nn::Module& module = *made.module;
  Tensor tied;
  const auto add = [&](const std::string& name, const auto& layer) {
    layer->to(::torch::kFloat64);
    module.register_module(name, layer);
  };
  if (first) {
    const auto embed =
        Must(VocabParallelEmbedding::Create(parallel, kVocabulary, kFeatures));
    add("embed", embed);
    ParallelLinearOptions up{kFeatures, kInner};
    const auto column = Must(ColumnParallelLinear::Create(parallel, up));
    // One that is divided, and frozen.
    column->named_parameters()["bias"].set_requires_grad(false);
    add("up", column);
    ParallelLinearOptions down{kInner, kFeatures};
    add("down", Must(RowParallelLinear::Create(parallel, down)));
  }
  if (last) {
    module.register_module("norm", std::make_shared<Norm>());
    // Where both of a tie are, they are one, under the first one's name.
    if (!first) {
      ParallelLinearOptions head{kFeatures, kVocabulary, /*bias=*/false};
      add("head", Must(ColumnParallelLinear::Create(parallel, head)));
    }
  }
  made.boxes = BoxesOf(module);
  return made;
}

std::vector<ParameterSpec> WholeModel() {
  const auto one = TensorParallel::ForDescription(1, /*sequence=*/false);
  const Made first = MakeLayers(one, true, false);
  const Made last = MakeLayers(one, false, true);
  std::vector<ParameterSpec> whole = Must(DescribeParameters(*first.module));
  for (ParameterSpec& spec : Must(DescribeParameters(*last.module))) {
    whole.push_back(std::move(spec));
  }
  return whole;
}

// Reads the values that the whole model has.
class WholeReader : public PieceReader {
 public:
  // With `zeros` they are that in place of it.
  explicit WholeReader(const ParameterBoxes& boxes, bool zeros = false)
      : boxes_(boxes), zeros_(zeros) {}
  absl::StatusOr<int64_t> StepOf(const std::string&,
                                 const std::string& kind) override {
    if (kind != "max_exp_avg_sq") return kSteps;
    return absl::NotFoundError("no amsgrad");
  }
  absl::Status Read(const TensorPiece& want, const Span& to) override {
    auto* const values = static_cast<double*>(to.data);
    FillIn(OfWhole(want, boxes_), values);
    if (zeros_) std::fill_n(values, to.count, 0.0);
    return absl::OkStatus();
  }

 private:
  const ParameterBoxes& boxes_;
  const bool zeros_;
};

struct Case {
  std::string mesh;
  int zero = 0;
};
std::string ToString(const Case& one) {
  return absl::StrCat(one.mesh, " zero=", one.zero);
}

const std::vector<std::string>& Meshes() {
  static const auto* const meshes = new std::vector<std::string>{
      "pp=2,dp=2,tp=2", "dp=1",         "dp=3",      "pp=2",
      "pp=2,dp=3",      "tp=2",         "tp=3",      "dp=2,tp=2",
      "pp=2,tp=2",      "dp=2,shard=2", "pp=2,tp=3", "dp=2,shard=2,tp=2"};
  return *meshes;
}

// A rank of such a mesh.
class Rank {
 public:
  Rank(std::shared_ptr<Communicator> world, const Mesh& mesh, int zero)
      : world_(std::move(world)) {
    at::set_num_threads(1);
    const int rank = world_->rank();
    const auto along = [&](std::vector<absl::string_view> names) {
      return mesh.GroupOf(rank, mesh.AxesOf(names));
    };
    const auto stages = along({"pp"});
    data_ = Must(world_->Split(along({"dp", "shard"})));
    tp_ = Must(world_->Split(along({"tp"})));
    TensorParallelOptions options;
    options.communicator = tp_.get();
    Made made = MakeLayers(Must(TensorParallel::Create(options)),
                           stages.front() == rank, stages.back() == rank);
    model_.module = made.module;
    model_.boxes = std::move(made.boxes);
    model_.part = tp_->rank();
    model_.parts = tp_->size();
    model_.whole = [] { return WholeModel(); };
    model_.ties = {{"embed.weight", "head.weight"},
                   {"head.weight", "embed.weight"}};
    optimizer_ = std::make_unique<::torch::optim::Adam>(
        model_.module->parameters(), ::torch::optim::AdamOptions(0.25));
    model_.replica = data_->rank();
    model_.replicas = data_->size();
    if (zero == 0) {
      model_.optimizer = optimizer_.get();
      return;
    }
    DistributedDataParallelOptions sharding = SmallBuckets(/*view=*/false);
    sharding.zero = zero;
    ddp_ = Must(DistributedDataParallel::Create(
        model_.module, data_.get(), std::make_unique<AverageHook>(), sharding));
    sharded_ = Must(ShardedOptimizer::Create(*ddp_, *optimizer_));
    model_.sharded = sharded_.get();
  }

  ProgramCheckpoint::Program Program() {
    return ProgramInPieces([this] { return model_; });
  }
  Communicator& world() { return *world_; }

  // Gives all of it the values that the whole model has.
  void FillIn() {
    const ::torch::NoGradGuard no_grad;
    for (const NamedTensor& named : TensorsOf(*model_.module)) {
      if (named.tensor.scalar_type() != ::torch::kFloat64) continue;
      const bool trained = named.tensor.requires_grad();
      Write(named, trained ? "value" : "untrained", named.tensor);
      if (!trained || sharded_ != nullptr) continue;
      EXPECT_OK(SetState(*optimizer_, named.tensor, kSteps,
                         [&](const std::string& kind,
                             const Tensor& to) -> absl::StatusOr<bool> {
                           if (kind == "max_exp_avg_sq") return false;
                           Write(named, kind, to);
                           return true;
                         }));
    }
    if (sharded_ == nullptr) return;
    WholeReader reader(model_.boxes);
    EXPECT_OK(sharded_->Load(reader));
  }
  // Forgets it.
  void Empty() {
    const ::torch::NoGradGuard no_grad;
    for (const NamedTensor& named : TensorsOf(*model_.module)) {
      named.tensor.zero_();
    }
    optimizer_->state().clear();
    if (sharded_ != nullptr) {
      WholeReader reader(model_.boxes, /*zeros=*/true);
      EXPECT_OK(sharded_->Load(reader));
    }
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(9);
  }

 private:
  void Write(const NamedTensor& named, const std::string& kind,
             const Tensor& to) {
    const TensorPiece piece = PieceOf(named.name, kind, to, model_.boxes);
    mesh_pieces_test::FillIn(piece, to.data_ptr<double>());
  }

  std::shared_ptr<Communicator> world_;
  std::unique_ptr<Communicator> data_, tp_;
  ModelInPieces model_;
  std::unique_ptr<::torch::optim::Optimizer> optimizer_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<ShardedOptimizer> sharded_;
};

void OnMesh(const Case& one, const std::function<void(Rank&)>& body) {
  const Mesh mesh = Must(Mesh::Parse(one.mesh));
  const auto world = InProcessWorld::Create(mesh.size(), kSoon);
  std::vector<std::thread> threads;
  for (int i = 0; i < mesh.size(); ++i) {
    threads.emplace_back(
        [&, communicator = std::shared_ptr<Communicator>(world->MakeRank(i))] {
          Rank rank(communicator, mesh, one.zero);
          body(rank);
        });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<TensorPiece> Described(const std::vector<PieceMemory>& pieces) {
  std::vector<TensorPiece> described;
  for (const PieceMemory& memory : pieces) described.push_back(memory.piece);
  return described;
}

// Expects that a piece has what the whole model has of it.
void ExpectValues(const PieceMemory& memory) {
  const TensorPiece& piece = memory.piece;
  if (piece.parameter[0] == '.') return;  // the groups' rates
  if (piece.dtype == ElementType::kUInt8) {
    EXPECT_EQ(*memory.data, 1);
  }
  if (piece.dtype != ElementType::kFloat64) return;
  const auto* const values = reinterpret_cast<const double*>(memory.data);
  bool same = true;
  ForEach(piece, [&](int64_t i, int64_t index) {
    const double expected = piece.kind == "learning_rate"
                                ? 0.25
                                : ValueOf(piece.parameter, piece.kind, index);
    same = same && values[i] == expected;
  });
  EXPECT_TRUE(same) << Describe(piece);
  if (piece.kind == "value" || piece.kind == "exp_avg") {
    EXPECT_EQ(piece.step, kSteps) << Describe(piece);
  }
}

class MeshPiecesTest : public ::testing::Test {
 protected:
  MeshPiecesTest() {
    v1::Fence fence;
    fence.set_job("job");
    client_ = std::make_unique<CheckpointClient>(
        std::make_shared<MemberContext>(fake_, fence, RetryPolicy()));
  }

  // Returns the checkpoint's id.
  std::string Save(const Case& one, int64_t step) {
    std::string id;
    OnMesh(one, [&](Rank& rank) {
      rank.FillIn();
      std::vector<PieceMemory> pieces;
      const ProgramCheckpoint::Program program = rank.Program();
      ASSERT_OK(program.fill_pieces(&pieces));
      CheckpointLabel label;
      label.step = step;
      auto saved = SavePieces(*client_, rank.world(), label, pieces);
      ASSERT_OK(saved);
      if (rank.world().rank() == 0) id = *saved;
    });
    return id;
  }

  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  FakeCheckpointService service_{fake_.get()};
  std::unique_ptr<CheckpointClient> client_;
  Mutex mutex_;
};

// How often each element is saved, by kind and name.
using Counts = std::map<std::string, std::vector<int>>;

TEST_F(MeshPiecesTest, TheRanksSaveEachElementOnce) {
  for (const std::string& mesh : Meshes()) {
    for (const int zero : {0, 1}) {
      const Case one = {mesh, zero};
      SCOPED_TRACE(ToString(one));
      Counts counts;
      OnMesh(one, [&](Rank& rank) {
        rank.FillIn();
        std::vector<PieceMemory> pieces;
        const ProgramCheckpoint::Program program = rank.Program();
        ASSERT_OK(program.fill_pieces(&pieces));
        ASSERT_OK_AND_ASSIGN(
            const PieceShare share,
            SharePieces(rank.world(), Described(pieces), absl::OkStatus()));
        MutexLock lock(&mutex_);
        for (const size_t number : share.own) {
          const TensorPiece& piece = pieces[number].piece;
          ExpectValues(pieces[number]);
          std::vector<int>& count =
              counts[absl::StrCat(piece.kind, " of ", piece.parameter)];
          count.resize(static_cast<size_t>(Box::Whole(piece.shape).count()));
          ForEach(piece, [&](int64_t, int64_t index) {
            ++count[static_cast<size_t>(index)];
          });
        }
      });
      const bool two = mesh.find("pp=2") == 0;
      // Trained are 4 parameters of the first stage and 2 of the last one, and
      // the tied one where that is another stage; each has a rate and two
      // tensors of state. Not trained are 2 more and 2 buffers.
      EXPECT_EQ(counts.size(), (two ? 7 : 6) * 4 + 4);
      for (const auto& [what, elements] : counts) {
        for (const int count : elements) {
          ASSERT_EQ(count, 1) << "of " << what;
        }
      }
      EXPECT_EQ(counts.at("exp_avg of down.weight").size(),
                static_cast<size_t>(kInner * kFeatures));
      EXPECT_EQ(counts.count("untrained of norm.flag"), 1);
      EXPECT_EQ(counts.count("value of head.weight"), two ? 1 : 0);
    }
  }
}

TEST_F(MeshPiecesTest, AnyMeshLoadsWhatAnyOtherHasSaved) {
  std::vector<Case> cases;
  std::vector<std::string> saved;
  for (size_t i = 0; i < Meshes().size(); ++i) {
    cases.push_back({Meshes()[i], static_cast<int>(i % 2)});
    saved.push_back(Save(cases[i], static_cast<int64_t>(i) + 1));
  }
  for (const std::string& mesh : Meshes()) {
    for (const int zero : {0, 1}) {
      OnMesh({mesh, zero}, [&](Rank& rank) {
        for (size_t i = 0; i < saved.size(); ++i) {
          SCOPED_TRACE(
              absl::StrCat(ToString(cases[i]), " to ", mesh, " zero=", zero));
          rank.Empty();
          auto from = PieceCheckpoint::Open(*client_, saved[i]);
          ASSERT_OK(from);
          const ProgramCheckpoint::Program program = rank.Program();
          ASSERT_OK(program.load_pieces(*from));
          std::vector<PieceMemory> pieces;
          ASSERT_OK(program.fill_pieces(&pieces));
          for (const PieceMemory& memory : pieces) ExpectValues(memory);
        }
      });
    }
  }
}

// A program without a mesh that has the tied parameter once, under either of
// its names first.
struct PlainModel : ::torch::nn::Module {
  struct Part : ::torch::nn::Module {};

  explicit PlainModel(bool head_first) {
    const Tensor tied = Zeros({kVocabulary, kFeatures});
    Add(head_first ? "head" : "embed").register_parameter("weight", tied);
    Add(head_first ? "embed" : "head").register_parameter("weight", tied);
    Part& up = Add("up");
    up.register_parameter("weight", Zeros({kInner, kFeatures}));
    up.register_parameter("bias", Zeros({kInner}), /*requires_grad=*/false);
    Part& down = Add("down");
    down.register_parameter("weight", Zeros({kFeatures, kInner}));
    down.register_parameter("bias", Zeros({kFeatures}));
    register_module("norm", std::make_shared<Norm>());
  }

 private:
  static Tensor Zeros(at::IntArrayRef sizes) {
    return ::torch::zeros(sizes, ::torch::kFloat64);
  }
  Part& Add(const std::string& name) {
    return *register_module(name, std::make_shared<Part>());
  }
};

TEST_F(MeshPiecesTest, OneProcessLoadsThemWithItsTiedParameterUnderOneName) {
  int64_t step = 0;
  for (const Case& one :
       std::vector<Case>{{"pp=2,dp=2,tp=2", 1}, {"tp=3", 0}, {"dp=3", 1}}) {
    const std::string id = Save(one, ++step);
    for (const bool head_first : {false, true}) {
      SCOPED_TRACE(absl::StrCat(ToString(one), ", head first: ", head_first));
      const auto module = std::make_shared<PlainModel>(head_first);
      ASSERT_EQ(TrainableParameters(*module).front().name,
                head_first ? "head.weight" : "embed.weight");
      ::torch::optim::Adam optimizer(module->parameters());
      auto from = PieceCheckpoint::Open(*client_, id);
      ASSERT_OK(from);
      const auto program = ProgramInPieces(module, &optimizer, 0, 1);
      ASSERT_OK(program.load_pieces(*from));
      std::vector<PieceMemory> pieces;
      ASSERT_OK(program.fill_pieces(&pieces));
      EXPECT_EQ(pieces.size(), 6 * 4 + 4 + 1);
      for (const PieceMemory& memory : pieces) ExpectValues(memory);
    }
  }
}

TEST_F(MeshPiecesTest, BoxesThatDoNotFitAreRefused) {
  const auto module = std::make_shared<PlainModel>(/*head_first=*/false);
  ::torch::optim::SGD optimizer(module->parameters(), 0.1);
  struct Wrong {
    std::string parameter;
    ParameterBox box;
    std::string why;
  };
  for (const Wrong& wrong : std::vector<Wrong>{
           {"down.bias", {{12}, {{0}, {5}}}, "of other sizes"},
           {"down.bias", {{12}, {{7}, {13}}}, "the box has [7, 13)"},
           {"down.nothing", {{12}, {{0}, {6}}}, "the module has not"}}) {
    ModelInPieces model;
    model.module = module;
    model.optimizer = &optimizer;
    model.boxes = {{wrong.parameter, wrong.box}};
    std::vector<PieceMemory> pieces;
    EXPECT_THAT(
        ProgramInPieces([&] { return model; }).fill_pieces(&pieces),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(wrong.why)));
  }
}

}  // namespace
}  // namespace coxswain::torch::mesh_pieces_test
