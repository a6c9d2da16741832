#ifndef COXSWAIN_TESTS_HOSTILE_CALL_ATTACK_H_
#define COXSWAIN_TESTS_HOSTILE_CALL_ATTACK_H_

#include <memory>

#include "tests/hostile/attack.h"

namespace coxswain {

// The attacks of calls, on one connection each.
std::unique_ptr<Attack> BeginCallAttack(AttackKind kind, int port);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_HOSTILE_CALL_ATTACK_H_
