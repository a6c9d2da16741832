#include "hooks/spec.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '_'; }
bool IsValueChar(char c) {
  return IsNameChar(c) || c == '.' || c == '+' || c == '-';
}

// Recursive descent; one function per rule of the grammar.
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Spec> ParseAll() {
    COXSWAIN_ASSIGN_OR_RETURN(Spec spec, ParseOne(1));
    if (next_ < text_.size()) return Expected("the end");
    return spec;
  }

 private:
  absl::StatusOr<Spec> ParseOne(int depth) {
    SkipSpace();
    Spec spec;
    spec.position = next_ + 1;
    COXSWAIN_ASSIGN_OR_RETURN(spec.name, Take(IsNameChar, "a hook's name"));
    COXSWAIN_RETURN_IF_ERROR(ParseArguments(depth, spec));
    return spec;
  }

  // What may follow a hook's name.
  absl::Status ParseArguments(int depth, Spec& spec) {
    if (depth > kMaxSpecDepth) {
      return SpecError(text_, spec.position,
                       absl::StrCat("more than ", kMaxSpecDepth,
                                    " hooks inside one another"));
    }
    if (!Accept('(') || Accept(')')) return absl::OkStatus();
    do {
      COXSWAIN_RETURN_IF_ERROR(ParseArgument(depth, spec));
    } while (Accept(','));
    return Accept(')') ? absl::OkStatus() : Expected("',' or ')'");
  }

  absl::Status ParseArgument(int depth, Spec& outer) {
    SkipSpace();
    const size_t position = next_ + 1;
    COXSWAIN_ASSIGN_OR_RETURN(std::string name,
                              Take(IsNameChar, "an option or a hook"));
    if (Accept('=')) {
      COXSWAIN_ASSIGN_OR_RETURN(std::string value,
                                Take(IsValueChar, "a value"));
      outer.options.push_back({std::move(name), std::move(value), position});
      return absl::OkStatus();
    }
    Spec spec;
    spec.name = std::move(name);
    spec.position = position;
    COXSWAIN_RETURN_IF_ERROR(ParseArguments(depth + 1, spec));
    outer.inner.push_back(std::move(spec));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Take(bool (*belongs)(char),
                                   absl::string_view what) {
    SkipSpace();
    const size_t begin = next_;
    while (next_ < text_.size() && belongs(text_[next_])) ++next_;
    if (next_ == begin) return Expected(what);
    std::string token(text_.substr(begin, next_ - begin));
    SkipSpace();
    return token;
  }

  bool Accept(char c) {
    SkipSpace();
    if (next_ >= text_.size() || text_[next_] != c) return false;
    ++next_;
    SkipSpace();
    return true;
  }

  void SkipSpace() {
    while (next_ < text_.size() && absl::ascii_isspace(text_[next_])) ++next_;
  }

  absl::Status Expected(absl::string_view what) const {
    const std::string found =
        next_ < text_.size()
            ? absl::StrCat("'", absl::CHexEscape(text_.substr(next_, 1)), "'")
            : "the end";
    return SpecError(text_, next_ + 1,
                     absl::StrCat("expected ", what, ", found ", found));
  }

  const absl::string_view text_;
  size_t next_ = 0;
};

}  // namespace

bool IsSpecName(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsNameChar);
}

bool IsSpecValue(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsValueChar);
}

absl::Status SpecError(absl::string_view text, size_t position,
                       absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("hook spec \"", absl::CHexEscape(text), "\", character ",
                   position, ": ", message));
}

absl::StatusOr<Spec> ParseSpec(absl::string_view text) {
  if (text.size() > kMaxSpecLength) {
    return absl::InvalidArgumentError(
        absl::StrCat("a hook spec may have ", kMaxSpecLength,
                     " characters, this one has ", text.size()));
  }
  return Parser(text).ParseAll();
}

}  // namespace coxswain
