#include "cli/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "cli/checkpoint_folder.h"
#include "cli/job_query.h"
#include "cli/terminal.h"
#include "server/describe/json.h"
#include "server/storage/file_system.h"

namespace coxswain {
namespace {

using Text = absl::StatusOr<std::string>;

// A deletion removes files from the coordinator's disk.
constexpr absl::Duration kDelete = absl::Minutes(5);

absl::StatusOr<bool> AskOnTerminal(const std::string& question) {
  if (isatty(STDIN_FILENO) == 0) {
    return absl::FailedPreconditionError(
        "stdin is no terminal, so the deletion cannot be confirmed; give "
        "--yes");
  }
  std::fprintf(stderr, "%s [y/N] ", question.c_str());
  std::fflush(stderr);
  const int first = std::getchar();
  for (int c = first; c != '\n' && c != EOF;) c = std::getchar();
  return first == 'y' || first == 'Y';
}

// The coordinator chooses the name, and the folder is written to.
absl::Status CheckFolderName(const std::string& id) {
  const bool is_name = !id.empty() && id != "." && id != ".." &&
                       id.find('/') == std::string::npos;
  if (is_name) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the coordinator calls the checkpoint \"", id,
      "\", which cannot be the name of a folder; name one with --to"));
}

std::string Named(const v1::CheckpointInfo& one) {
  return absl::StrCat("checkpoint ", one.checkpoint_id(), " of job ", one.job(),
                      " (step ", one.step(), ", ", SizeText(one.bytes()), ")");
}

// One command.
class Command {
 public:
  Command(const CheckpointOptions& options, const CheckpointWorld& world)
      : options_(options), world_(world), stub_(*world.transfer.stub) {
    call_.timeout = options.timeout;
  }

  Text List() {
    COXSWAIN_ASSIGN_OR_RETURN(const FoundJob found, Job(options_.job));
    const std::string& job = found.job.job();
    COXSWAIN_ASSIGN_OR_RETURN(const auto checkpoints,
                              ListCheckpoints(stub_, job, options_.timeout));
    return options_.json ? FormatCheckpointsJson(job, checkpoints)
                         : FormatCheckpoints(job, checkpoints);
  }

  Text Show() {
    COXSWAIN_ASSIGN_OR_RETURN(const FoundCheckpoint found, Find());
    COXSWAIN_ASSIGN_OR_RETURN(const v1::ShowResponse shown,
                              AskFor(found.checkpoint));
    return options_.json ? FormatCheckpointJson(shown)
                         : FormatCheckpoint(shown);
  }

  Text Export() {
    COXSWAIN_ASSIGN_OR_RETURN(const FoundCheckpoint found, Find());
    COXSWAIN_ASSIGN_OR_RETURN(const v1::ShowResponse shown,
                              AskFor(found.checkpoint));
    std::string folder = options_.folder;
    if (folder.empty()) {
      folder = found.checkpoint.checkpoint_id();
      COXSWAIN_RETURN_IF_ERROR(CheckFolderName(folder));
    }
    COXSWAIN_RETURN_IF_ERROR(ExportCheckpoint(world_.transfer, shown, folder));
    return absl::StrCat("exported ", Named(found.checkpoint), " to ", folder,
                        "\n");
  }

  Text Import() {
    std::string job = options_.job;
    if (job.empty()) {
      COXSWAIN_ASSIGN_OR_RETURN(
          const auto record,
          ReadFolder(*world_.transfer.files, options_.folder));
      job = record.job;
    }
    COXSWAIN_ASSIGN_OR_RETURN(const FoundJob found, Job(job));
    COXSWAIN_ASSIGN_OR_RETURN(
        const v1::CheckpointInfo imported,
        ImportCheckpoint(world_.transfer, found, options_.folder));
    return absl::StrCat("imported ", Named(imported), " from ", options_.folder,
                        "\n");
  }

  Text Verify() {
    COXSWAIN_ASSIGN_OR_RETURN(const FoundCheckpoint found, Find());
    COXSWAIN_RETURN_IF_ERROR(
        VerifyCheckpoint(world_.transfer, found.checkpoint));
    return absl::StrCat("verified ", Named(found.checkpoint), ": no damage\n");
  }

  Text Delete() {
    COXSWAIN_ASSIGN_OR_RETURN(const FoundCheckpoint found, Find());
    const std::string named = Named(found.checkpoint);
    if (!options_.yes) {
      COXSWAIN_ASSIGN_OR_RETURN(
          const bool yes,
          world_.confirm(absl::StrCat("Delete ", named, " for good?")));
      if (!yes) return std::string("nothing was deleted\n");
    }
    v1::DeleteRequest request;
    *request.mutable_fence() =
        OperatorFence(found.found, world_.transfer.random);
    request.set_job(found.checkpoint.job());
    request.set_checkpoint_id(found.checkpoint.checkpoint_id());
    CallOptions call = call_;
    call.timeout = kDelete;
    const absl::Status deleted = stub_.DeleteCheckpoint(request, call).status();
    // An earlier attempt may have deleted it without its answer arriving.
    if (deleted.ok() || absl::IsNotFound(deleted)) {
      return absl::StrCat("deleted ", named, "\n");
    }
    return ExplainCall(stub_, "did not delete the checkpoint", deleted);
  }

  Text Now() {
    COXSWAIN_ASSIGN_OR_RETURN(const FoundJob found, Job(options_.job));
    v1::RequestCheckpointRequest request;
    request.set_job(found.job.job());
    request.set_reason(options_.reason);
    *request.mutable_fence() = OperatorFence(found, world_.transfer.random);
    const auto asked = stub_.RequestCheckpoint(request, call_);
    if (!asked.ok()) {
      return ExplainCall(stub_, "did not accept the request to save",
                         asked.status());
    }
    return absl::StrCat("job ", found.job.job(),
                        " was asked to save a checkpoint after one of its next "
                        "steps; step ",
                        asked->newest_step(),
                        " is the newest one known. `coxswain checkpoint list` "
                        "shows it once it is complete\n");
  }

 private:
  absl::StatusOr<FoundJob> Job(const std::string& name) {
    return FindJob(stub_, name, options_.timeout);
  }
  absl::StatusOr<FoundCheckpoint> Find() {
    return FindCheckpoint(stub_, options_.job, options_.which,
                          options_.timeout);
  }
  absl::StatusOr<v1::ShowResponse> AskFor(const v1::CheckpointInfo& one) {
    v1::ShowRequest request;
    request.set_job(one.job());
    request.set_checkpoint_id(one.checkpoint_id());
    auto shown = stub_.ShowCheckpoint(request, call_);
    if (shown.ok()) return shown;
    return ExplainCall(stub_, "did not describe the checkpoint",
                       shown.status());
  }

  const CheckpointOptions& options_;
  const CheckpointWorld& world_;
  CoordinatorStub& stub_;
  CallOptions call_;
};

using server::Json;

// What the library writes into the metadata of a checkpoint.
constexpr char kHook[] = "hook";
constexpr char kWorldSize[] = "world_size";
constexpr char kPlanVersion[] = "plan_version";
constexpr char kPieces[] = "pieces";
constexpr char kErrors[] = "errors";
constexpr char kOwn[] = "own";
constexpr char kPosition[] = "position/";

// The metadata is a program's own text, and this is printed on a terminal.
std::string Visible(const std::string& text) {
  return absl::Utf8SafeCEscape(text);
}

std::string Meta(const v1::CheckpointInfo& one, const std::string& name) {
  const auto found = one.metadata().find(name);
  return found == one.metadata().end() ? "-" : Visible(found->second);
}

std::string MadeText(const v1::CheckpointInfo& one) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%SZ",
                          absl::FromUnixMillis(one.created_unix_ms()),
                          absl::UTCTimeZone());
}

std::string GenerationText(const v1::CheckpointInfo& one) {
  return one.generation() == 0 ? "imported" : absl::StrCat(one.generation());
}

Json ToJson(const v1::CheckpointInfo& one) {
  Json json = server::CheckpointJson(one);
  json["metadata"] = std::map<std::string, std::string>(one.metadata().begin(),
                                                        one.metadata().end());
  json["created_unix_ms"] = one.created_unix_ms();
  return json;
}

// What the metadata means, the best known first; names of others as they are.
std::vector<TableRow> Explained(const v1::CheckpointInfo& one) {
  std::vector<TableRow> rows;
  std::map<std::string, std::string> rest(one.metadata().begin(),
                                          one.metadata().end());
  const auto take = [&](const char* name, const std::string& label) {
    const auto found = rest.find(name);
    if (found == rest.end()) return;
    rows.push_back({label, Visible(found->second)});
    rest.erase(found);
  };
  // Pieces alone, without the state of a training.
  const bool has_errors = rest.count(kHook) > 0 || rest.count(kPieces) == 0;
  take(kHook, "hook");
  take(kWorldSize, "ranks that saved it");
  take(kPieces, "pieces of a sharded model");
  take(kPlanVersion, "version of the plan");
  const auto errors = rest.find(kErrors);
  if (errors != rest.end() && errors->second == kOwn) {
    rows.push_back({"errors", "each rank's own"});
    rest.erase(errors);
  } else if (errors == rest.end() && has_errors) {
    rows.push_back({"errors", "their mean"});
  }
  for (const auto& [name, value] : rest) {
    rows.push_back(
        {absl::StartsWith(name, kPosition)
             ? absl::StrCat("windows done in stream '",
                            Visible(name.substr(strlen(kPosition))), "'")
             : absl::StrCat("'", Visible(name), "'"),
         Visible(value)});
  }
  return rows;
}

}  // namespace

CheckpointWorld RealCheckpointWorld(CoordinatorStub* stub) {
  CheckpointWorld world;
  world.transfer.stub = stub;
  world.transfer.files = server::PosixFileSystem();
  world.transfer.random = RandomSource::System();
  world.transfer.progress = ProgressOn(STDERR_FILENO);
  world.confirm = AskOnTerminal;
  return world;
}

absl::StatusOr<std::string> RunCheckpoint(const CheckpointOptions& options,
                                          const CheckpointWorld& world) {
  CheckpointWorld own = world;
  if (options.quiet) own.transfer.progress.write = nullptr;
  Command command(options, own);
  using Action = CheckpointOptions::Action;
  switch (options.action) {
    case Action::kList:
      return command.List();
    case Action::kShow:
      return command.Show();
    case Action::kExport:
      return command.Export();
    case Action::kImport:
      return command.Import();
    case Action::kVerify:
      return command.Verify();
    case Action::kDelete:
      return command.Delete();
    case Action::kNow:
      return command.Now();
  }
  return absl::InternalError("no such command");
}

std::string FormatCheckpoints(
    const std::string& job,
    const std::vector<v1::CheckpointInfo>& checkpoints) {
  if (checkpoints.empty()) {
    return absl::StrCat("job ", job, " has no checkpoints\n");
  }
  std::vector<TableRow> rows = {
      {"CHECKPOINT", "STEP", "MADE", "GENERATION", "SHARDS", "SIZE", "HOOK"}};
  const bool sharded = std::any_of(
      checkpoints.begin(), checkpoints.end(),
      [](const auto& one) { return one.metadata().contains(kPieces); });
  if (sharded) rows[0].push_back("PIECES");
  int64_t bytes = 0;
  for (const v1::CheckpointInfo& one : checkpoints) {
    rows.push_back({one.checkpoint_id(), absl::StrCat(one.step()),
                    MadeText(one), GenerationText(one),
                    absl::StrCat(one.shards()), SizeText(one.bytes()),
                    Meta(one, kHook)});
    if (sharded) rows.back().push_back(Meta(one, kPieces));
    bytes += one.bytes();
  }
  return absl::StrCat("job ", job, ": ", checkpoints.size(), " checkpoint",
                      checkpoints.size() == 1 ? "" : "s", ", ", SizeText(bytes),
                      ", the newest first\n", AlignTable(rows));
}

std::string FormatCheckpointsJson(
    const std::string& job,
    const std::vector<v1::CheckpointInfo>& checkpoints) {
  Json list = Json::array();
  for (const v1::CheckpointInfo& one : checkpoints) list.push_back(ToJson(one));
  return server::DumpLines({{"job", job}, {"checkpoints", std::move(list)}});
}

std::string FormatCheckpoint(const v1::ShowResponse& checkpoint) {
  const v1::CheckpointInfo& one = checkpoint.checkpoint();
  std::vector<TableRow> facts = {
      {"job", one.job()},
      {"step", absl::StrCat(one.step())},
      {"made", MadeText(one)},
      {"generation", GenerationText(one)},
      {"size", absl::StrCat(SizeText(one.bytes()), " in ", one.shards(),
                            one.shards() == 1 ? " shard" : " shards")}};
  for (TableRow& row : Explained(one)) facts.push_back(std::move(row));
  std::vector<TableRow> shards = {{"SHARD", "SIZE", "BYTES", "CRC-32C"}};
  for (const v1::ShardInfo& shard : checkpoint.shards()) {
    shards.push_back({absl::StrCat(shard.shard()), SizeText(shard.bytes()),
                      absl::StrCat(shard.bytes()),
                      absl::StrFormat("%08x", shard.crc32c())});
  }
  return absl::StrCat("checkpoint ", one.checkpoint_id(), "\n",
                      AlignTable(facts), AlignTable(shards));
}

std::string FormatCheckpointJson(const v1::ShowResponse& checkpoint) {
  Json json = ToJson(checkpoint.checkpoint());
  Json files = Json::array();
  for (const v1::ShardInfo& shard : checkpoint.shards()) {
    files.push_back({{"shard", shard.shard()},
                     {"file", shard.file()},
                     {"bytes", shard.bytes()},
                     {"crc32c", absl::StrFormat("%08x", shard.crc32c())}});
  }
  json["files"] = std::move(files);
  return server::DumpLines(json);
}

}  // namespace coxswain
