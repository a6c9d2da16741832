/* A program of somebody else, in C: two ranks sum up their ranks' numbers. */
#include <coxswain.h>
#include <stdio.h>

int main(void) {
  cx_join_options options = CX_INIT(cx_join_options);
  cx_session_info info = CX_INIT(cx_session_info);
  cx_session session = 0;
  double number = 0;
  cx_code code = cx_join(&options, &session, NULL);

  if (code == CX_OK) code = cx_info(session, &info);
  if (code == CX_OK) {
    number = info.rank + 1;
    code = cx_all_reduce(session, &number, 1, CX_FLOAT64, CX_SUM, NULL);
  }
  if (code == CX_OK) code = cx_leave(session, "done", 0, NULL);
  if (code != CX_OK) {
    fprintf(stderr, "in_c: %s\n", cx_last_error_message());
    return 1;
  }
  cx_close(session);
  printf("rank %d of %d: %g\n", (int)info.rank, (int)info.world_size, number);
  return 0;
}
