#ifndef COXSWAIN_BASE_FREED_BY_H_
#define COXSWAIN_BASE_FREED_BY_H_

namespace coxswain {

// Deletes what a C library has made: std::unique_ptr<BIO, FreedBy<BIO_free>>.
template <auto Free>
struct FreedBy {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_FREED_BY_H_
