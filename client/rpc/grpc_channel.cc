#include "client/rpc/grpc_channel.h"

#include "client/rpc/credentials.h"
#include "proto/bulk/transport.h"

namespace coxswain {
namespace {

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  // A proxy of the environment is for the web, not for the cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Stubs do not share a connection, nor its pauses after a failure.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Our callers pause between attempts; gRPC's default of up to two minutes
  // on top would make a late coordinator look dead.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also how long a connection may take to be made: a frozen coordinator's
  // host accepts it, and says nothing.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // One that was moved has the same name and another address: gRPC would ask
  // for it twice a minute.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  // Only callers know what may be repeated.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  bulk::ConfigureTransport([&arguments](const char* name, int value) {
    arguments.SetInt(name, value);
  });
  // Errors travel, with their details, in the trailing metadata.
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
  // A coordinator whose host is gone, or that is frozen, sends nothing that
  // would end a stream: it is noticed within eight seconds, soon after a
  // standby has taken over. One that is busy with thousands of workers may take
  // seconds to answer a ping, and would only have more to do if they all came
  // again.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 3000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(
    const std::string& address, const ClientSecurity& security) {
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, MakeChannelCredentials(security), Arguments(),
      MakeTokenInterceptors(security, address));
}

std::shared_ptr<grpc::Channel> MakeStandInChannel(
    const std::string& address, const ClientSecurity& security,
    const std::string& job) {
  return grpc::CreateCustomChannel(
      address, MakeStandInChannelCredentials(security, job), Arguments());
}

}  // namespace coxswain
