#include "tests/fuzz/message_damage.h"

#include <cstdint>
#include <cstring>
#include <string>

namespace coxswain {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMostChanges = 4;
constexpr int kDepth = 4;
constexpr int kMostElements = 300;

class Damage {
 public:
  Damage(const std::vector<std::string>& words, FuzzBytes* bytes)
      : words_(words), bytes_(bytes) {}

  void Change(int depth, Message* message) {
    const Descriptor* const type = message->GetDescriptor();
    if (type->field_count() == 0) return;
    const FieldDescriptor* const field =
        type->field(static_cast<int>(bytes_->Below(type->field_count())));
#ifdef __SANITIZE_THREAD__
    // protobuf's headers add to maps here what its library does not know of.
    if (field->is_map()) return;
#endif
    if (field->is_repeated()) {
      ChangeRepeated(field, depth, message);
    } else if (bytes_->Below(8) == 7) {
      message->GetReflection()->ClearField(message, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message* const inner =
          message->GetReflection()->MutableMessage(message, field);
      if (depth > 0) Change(depth - 1, inner);
    } else {
      Set(field, message);
    }
  }

 private:
  std::string Text(const FieldDescriptor* field) {
    const size_t which = bytes_->Below(words_.size() + 4);
    if (which < words_.size()) return words_[which];
    std::string text(bytes_->Text());
    if (which == words_.size()) {
      text.assign(bytes_->Number() % 70'000, 'x');
    }
    // protobuf itself sends, and takes, no other text.
    if (field->type() != FieldDescriptor::TYPE_BYTES) {
      for (char& c : text) c = static_cast<char>(c & 0x7f);
    }
    return text;
  }
  double Real() {
    const uint64_t bits = bytes_->Number();
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return bytes_->Below(2) == 0 ? static_cast<double>(bits) : value;
  }

  void Set(const FieldDescriptor* field, Message* message) {
    const Reflection* const reflection = message->GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection->SetInt32(message, field,
                                    static_cast<int32_t>(bytes_->Number()));
      case FieldDescriptor::CPPTYPE_INT64:
        return reflection->SetInt64(message, field,
                                    static_cast<int64_t>(bytes_->Number()));
      case FieldDescriptor::CPPTYPE_UINT32:
        return reflection->SetUInt32(message, field,
                                     static_cast<uint32_t>(bytes_->Number()));
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection->SetUInt64(message, field, bytes_->Number());
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return reflection->SetDouble(message, field, Real());
      case FieldDescriptor::CPPTYPE_FLOAT:
        return reflection->SetFloat(message, field, static_cast<float>(Real()));
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection->SetBool(message, field, bytes_->Below(2) == 1);
      case FieldDescriptor::CPPTYPE_ENUM:
        return reflection->SetEnumValue(message, field,
                                        static_cast<int>(bytes_->Number()));
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection->SetString(message, field, Text(field));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return;
    }
  }

  void Add(const FieldDescriptor* field, Message* message) {
    const Reflection* const reflection = message->GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection->AddInt32(message, field,
                                    static_cast<int32_t>(bytes_->Number()));
      case FieldDescriptor::CPPTYPE_INT64:
        return reflection->AddInt64(message, field,
                                    static_cast<int64_t>(bytes_->Number()));
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection->AddString(message, field, Text(field));
      default:
        return;  // no message of this project repeats others
    }
  }

  void ChangeRepeated(const FieldDescriptor* field, int depth,
                      Message* message) {
    const Reflection* const reflection = message->GetReflection();
    const int size = reflection->FieldSize(*message, field);
    const bool messages = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const size_t what = bytes_->Below(4);
    if (what == 3) return reflection->ClearField(message, field);
    if (what == 2 && size > 0 && messages) {
      Message* const one = reflection->MutableRepeatedMessage(
          message, field, static_cast<int>(bytes_->Below(256)) % size);
      if (depth > 0) Change(depth - 1, one);
      return;
    }
    const int count = what == 1 ? 1 + bytes_->Byte() : 1;
    for (int i = 0; i < count && size + i < kMostElements; ++i) {
      if (!messages) {
        Add(field, message);
        continue;
      }
      Message* const one = reflection->AddMessage(message, field);
      if (depth > 0) Change(depth - 1, one);
    }
  }

  const std::vector<std::string>& words_;
  FuzzBytes* const bytes_;
};

}  // namespace

void DamageMessage(const std::vector<std::string>& words, FuzzBytes* bytes,
                   Message* message) {
  Damage damage(words, bytes);
  const size_t changes = bytes->Below(kMostChanges + 1);
  for (size_t i = 0; i < changes; ++i) damage.Change(kDepth, message);
}

}  // namespace coxswain
