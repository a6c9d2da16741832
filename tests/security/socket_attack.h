#ifndef COXSWAIN_TESTS_SECURITY_SOCKET_ATTACK_H_
#define COXSWAIN_TESTS_SECURITY_SOCKET_ATTACK_H_

#include <memory>

#include "tests/security/attack.h"

namespace coxswain {

// Begins an attack of bare connections.
std::unique_ptr<Attack> BeginSocketAttack(AttackKind kind, int port,
                                          int connections);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_SOCKET_ATTACK_H_
