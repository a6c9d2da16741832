#include "base/reset_watch/channelz.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"
#include "nlohmann/json.hpp"

namespace coxswain::grpc_counts {
namespace {

using Json = nlohmann::json;

// Empty if gRPC has no answer.
std::string Take(char* answer) {
  if (answer == nullptr) return "";
  std::string text = answer;
  gpr_free(answer);
  return text;
}

Json Parse(absl::string_view text) {
  Json parsed = Json::parse(text.begin(), text.end(), nullptr,
                            /*allow_exceptions=*/false);
  return parsed.is_object() ? parsed : Json::object();
}

const Json& In(const Json& object, const char* name) {
  static const auto& nothing = *new Json(Json::object());
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : nothing;
}

// 64-bit numbers are texts in protobuf's JSON, and zeros are left out.
int64_t Number(const Json& object, const char* name) {
  const Json& value = In(object, name);
  if (value.is_number_integer()) return value.get<int64_t>();
  int64_t number = 0;
  if (!value.is_string() ||
      !absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)) {
    return 0;
  }
  return number;
}

std::string WithoutMapping(std::string ip) {
  static constexpr char kMapped[] = "\0\0\0\0\0\0\0\0\0\0\xff\xff";
  const absl::string_view prefix(kMapped, 12);
  if (ip.size() == 16 &&
      ip.compare(0, prefix.size(), prefix.data(), prefix.size()) == 0) {
    ip.erase(0, prefix.size());
  }
  return ip;
}

Endpoint EndpointOf(const Json& address) {
  const Json& tcp = In(address, "tcpip_address");
  const Json& ip = In(tcp, "ip_address");
  Endpoint endpoint;
  if (!ip.is_string() ||
      !absl::Base64Unescape(ip.get_ref<const std::string&>(), &endpoint.ip)) {
    return endpoint;
  }
  endpoint.ip = WithoutMapping(std::move(endpoint.ip));
  endpoint.port = static_cast<int>(Number(tcp, "port"));
  return endpoint;
}

Endpoint EndpointOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& ip4 = reinterpret_cast<const sockaddr_in&>(address);
    return {std::string(reinterpret_cast<const char*>(&ip4.sin_addr), 4),
            ntohs(ip4.sin_port)};
  }
  if (address.ss_family == AF_INET6) {
    const auto& ip6 = reinterpret_cast<const sockaddr_in6&>(address);
    return {WithoutMapping(
                std::string(reinterpret_cast<const char*>(&ip6.sin6_addr), 16)),
            ntohs(ip6.sin6_port)};
  }
  return {};
}

using GetName = int (*)(int, sockaddr*, socklen_t*);
Endpoint EndOf(int fd, GetName get) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (get(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return EndpointOf(address);
}

// The descriptors of this process.
std::vector<int> Descriptors() {
  std::vector<int> descriptors;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"),
                                                   closedir);
  if (folder == nullptr) return descriptors;
  while (const dirent* const entry = readdir(folder.get())) {
    int fd = 0;
    if (absl::SimpleAtoi(entry->d_name, &fd)) descriptors.push_back(fd);
  }
  return descriptors;
}

// Pages of a list, each of which says whether it is the last one; `add` returns
// the id of what it is given.
template <typename GetPage, typename Add>
void WalkPages(const char* items, GetPage get_page, Add add) {
  int64_t next = 0;
  while (true) {
    const Json page = Parse(get_page(next));
    const Json& list = In(page, items);
    if (!list.is_array()) return;
    for (const Json& item : list) next = add(item) + 1;
    if (page.contains("end") || list.empty()) return;
  }
}

}  // namespace

bool operator<(const Endpoint& a, const Endpoint& b) {
  return std::tie(a.port, a.ip) < std::tie(b.port, b.ip);
}

std::string TextOf(const Endpoint& endpoint) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool is_ip4 = endpoint.ip.size() == 4;
  if (!is_ip4 && endpoint.ip.size() != 16) return "unknown";
  inet_ntop(is_ip4 ? AF_INET : AF_INET6, endpoint.ip.data(), text,
            sizeof(text));
  return is_ip4 ? absl::StrCat(text, ":", endpoint.port)
                : absl::StrCat("[", text, "]:", endpoint.port);
}

std::vector<Server> ListServers() {
  std::vector<Server> servers;
  WalkPages(
      "server",
      [](int64_t from) { return Take(grpc_channelz_get_servers(from)); },
      [&servers](const Json& item) {
        const Json& data = In(item, "data");
        Server server;
        server.id = Number(In(item, "ref"), "serverId");
        server.begun = Number(data, "callsStarted");
        server.failed = Number(data, "callsFailed");
        server.ended = server.failed + Number(data, "callsSucceeded");
        servers.push_back(server);
        return server.id;
      });
  return servers;
}

Connection ParseConnection(absl::string_view json) {
  const Json answer = Parse(json);
  const Json& socket = In(answer, "socket");
  const Json& data = In(socket, "data");
  Connection connection;
  connection.id = Number(In(socket, "ref"), "socketId");
  connection.local = EndpointOf(In(socket, "local"));
  connection.remote = EndpointOf(In(socket, "remote"));
  connection.begun = Number(data, "streamsStarted");
  connection.answered = Number(data, "streamsSucceeded");
  connection.broken = Number(data, "streamsFailed");
  return connection;
}

std::vector<Connection> ListConnections(int64_t server) {
  std::vector<int64_t> ids;
  WalkPages(
      "socketRef",
      [server](int64_t from) {
        return Take(grpc_channelz_get_server_sockets(server, from, 0));
      },
      [&ids](const Json& item) {
        ids.push_back(Number(item, "socketId"));
        return ids.back();
      });
  std::vector<Connection> connections;
  for (const int64_t id : ids) {
    const std::string json = Take(grpc_channelz_get_socket(id));
    Connection connection = ParseConnection(json);
    if (connection.id == id && !connection.remote.ip.empty()) {
      connections.push_back(std::move(connection));
    }
  }
  return connections;
}

std::vector<Connection> End(const std::vector<Connection>& connections) {
  if (connections.empty()) return {};
  std::map<std::pair<Endpoint, Endpoint>, const Connection*> wanted;
  for (const Connection& connection : connections) {
    wanted[{connection.remote, connection.local}] = &connection;
  }
  // Takes the address from a socket, which resets the connection at once. A
  // shutdown would let gRPC read what has come, and the client send more.
  sockaddr none = {};
  none.sa_family = AF_UNSPEC;
  std::vector<Connection> ended;
  for (const int fd : Descriptors()) {
    const auto found =
        wanted.find({EndOf(fd, getpeername), EndOf(fd, getsockname)});
    if (found == wanted.end()) continue;
    if (connect(fd, &none, sizeof(none)) == 0) ended.push_back(*found->second);
  }
  return ended;
}

}  // namespace coxswain::grpc_counts
