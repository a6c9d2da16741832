#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/grpc_status.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/bulk/bulk_peers.h"
#include "tests/bench/bulk/plain_bytes.grpc.pb.h"

namespace coxswain::bench {
namespace {

constexpr size_t kPiece = 1 << 20;
constexpr size_t kMostOnce = size_t{64} << 20;  // gRPC would take 4 MiB

const grpc::Status kDamaged(grpc::StatusCode::DATA_LOSS, "a checksum differs");

class Service final : public PlainBytes::Service {
 public:
  explicit Service(std::string file) : file_(std::move(file)) {}

  grpc::Status Put(grpc::ServerContext*, grpc::ServerReader<Piece>* reader,
                   Done*) override {
    std::ofstream file(file_, std::ios::binary | std::ios::trunc);
    file.rdbuf()->pubsetbuf(nullptr, 0);
    Piece piece;
    size_ = 0;
    while (reader->Read(&piece)) {
      if (Crc32c(piece.data()) != piece.crc32c()) return kDamaged;
      file.write(piece.data().data(),
                 static_cast<std::streamsize>(piece.data().size()));
      size_ += piece.data().size();
    }
    return grpc::Status::OK;
  }

  grpc::Status Get(grpc::ServerContext*, const Wanted*,
                   grpc::ServerWriter<Piece>* writer) override {
    std::ifstream file(file_, std::ios::binary);
    Piece piece;
    for (size_t at = 0; at < size_; at += kPiece) {
      std::string* data = piece.mutable_data();
      data->resize(std::min(kPiece, size_ - at));
      file.read(&(*data)[0], static_cast<std::streamsize>(data->size()));
      piece.set_offset(static_cast<int64_t>(at));
      piece.set_crc32c(Crc32c(*data));
      if (!writer->Write(piece)) break;
    }
    return grpc::Status::OK;
  }

 private:
  const std::string file_;
  size_t size_ = 0;
};

// Writes its port to `out`, and serves until it is killed.
void Serve(const std::string& file, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Service service(file);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (write(out, &port, sizeof(port)) != sizeof(port)) _exit(1);
  server->Wait();
}

class Plain : public BulkPeer {
 public:
  explicit Plain(int port) : port_(port) {}

  absl::Status Put(absl::string_view bytes) override {
    grpc::ClientContext context;
    Done done;
    const auto writer = Stub().Put(&context, &done);
    Piece piece;
    for (size_t at = 0; at < bytes.size(); at += kPiece) {
      const absl::string_view data = bytes.substr(at, kPiece);
      piece.set_offset(static_cast<int64_t>(at));
      piece.set_data(data.data(), data.size());
      piece.set_crc32c(Crc32c(data));
      if (!writer->Write(piece)) break;
    }
    writer->WritesDone();
    return FromGrpcStatus(writer->Finish());
  }

  absl::Status Get(NewBytes* bytes) override {
    grpc::ClientContext context;
    const auto reader = Stub().Get(&context, Wanted());
    size_t at = 0;
    Piece piece;
    while (reader->Read(&piece)) {
      if (Crc32c(piece.data()) != piece.crc32c()) {
        return FromGrpcStatus(kDamaged);
      }
      if (piece.data().size() > bytes->size - at) {
        return absl::DataLossError("more than was put");
      }
      std::copy(piece.data().begin(), piece.data().end(),
                bytes->data.get() + at);
      at += piece.data().size();
    }
    return FromGrpcStatus(reader->Finish());
  }

 private:
  // Not before the other processes have been forked.
  PlainBytes::Stub& Stub() {
    if (stub_ != nullptr) return *stub_;
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMostOnce);
    stub_ = PlainBytes::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials(),
        arguments));
    return *stub_;
  }

  const int port_;
  std::unique_ptr<PlainBytes::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BulkPeer>> StartPlainBytes(
    const std::string& file) {
  int ends[2];
  if (pipe(ends) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const UniqueFd in(ends[0]);
  const UniqueFd out(ends[1]);
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child == 0) {
    Serve(file, out.get());
    _exit(1);
  }
  int port = 0;
  if (read(in.get(), &port, sizeof(port)) != sizeof(port)) {
    return absl::UnavailableError("the plain server has not started");
  }
  return std::make_unique<Plain>(port);
}

}  // namespace coxswain::bench
