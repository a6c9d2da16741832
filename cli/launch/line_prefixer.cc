#include "cli/launch/line_prefixer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using Json = nlohmann::json;

// Returns the JSON object that the line is; null if it is none.
Json ObjectIn(const std::string& line) {
  if (!absl::StartsWith(line, "{")) return Json();
  return Json::parse(line, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

LinePrefixer LinePrefixer::OfJson(std::string prefix, absl::string_view node,
                                  int slot) {
  LinePrefixer prefixer(std::move(prefix), kMaxJsonLine);
  const std::string name =
      nlohmann::json(std::string(node))
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  prefixer.json_fields_ = absl::StrCat(R"("node":)", name, R"(,"slot":)", slot);
  return prefixer;
}

void LinePrefixer::Append(absl::string_view data, std::string* out) {
  if (prefix_.empty()) {
    absl::StrAppend(out, data);
    return;
  }
  while (!data.empty()) {
    const size_t space = max_line_ - partial_.size();
    const size_t end = data.substr(0, space + 1).find('\n');
    if (end != absl::string_view::npos) {
      Emit(data.substr(0, end), out);
      data.remove_prefix(end + 1);
    } else if (data.size() > space) {
      Emit(data.substr(0, space), out);
      data.remove_prefix(space);
    } else {
      absl::StrAppend(&partial_, data);
      return;
    }
  }
}

void LinePrefixer::Finish(std::string* out) {
  if (!partial_.empty()) Emit("", out);
}

void LinePrefixer::Emit(absl::string_view rest_of_line, std::string* out) {
  absl::StrAppend(&partial_, rest_of_line);
  const std::string line = std::exchange(partial_, "");
  const auto object = json_fields_.empty() ? Json() : ObjectIn(line);
  if (!object.is_object()) {
    absl::StrAppend(out, prefix_, line, "\n");
  } else if (object.contains("node")) {
    absl::StrAppend(out, line, "\n");
  } else {
    absl::StrAppend(out, "{", json_fields_, object.empty() ? "" : ",",
                    line.substr(line.find('{') + 1), "\n");
  }
}

}  // namespace coxswain
