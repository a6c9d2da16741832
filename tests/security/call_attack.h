#ifndef COXSWAIN_TESTS_SECURITY_CALL_ATTACK_H_
#define COXSWAIN_TESTS_SECURITY_CALL_ATTACK_H_

#include <memory>

#include "tests/security/attack.h"

namespace coxswain {

// Begins an attack of calls, on one connection.
std::unique_ptr<Attack> BeginCallAttack(AttackKind kind, int port);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_CALL_ATTACK_H_
