#include "cli/launch/line_prefixer.h"

#include "absl/strings/str_cat.h"

namespace coxswain {

void LinePrefixer::Append(absl::string_view data, std::string* out) {
  if (prefix_.empty()) {
    absl::StrAppend(out, data);
    return;
  }
  while (!data.empty()) {
    const size_t room = max_line_ - partial_.size();
    const size_t end = data.substr(0, room + 1).find('\n');
    if (end != absl::string_view::npos) {
      Emit(data.substr(0, end), out);
      data.remove_prefix(end + 1);
    } else if (data.size() > room) {
      Emit(data.substr(0, room), out);
      data.remove_prefix(room);
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
  absl::StrAppend(out, prefix_, partial_, rest_of_line, "\n");
  partial_.clear();
}

}  // namespace coxswain
