/* Forget a working type. */
#undef T
#undef FD_NATIVE
#undef FD_SUFFIX
#undef FD_T
#undef FD_W
#undef FD_DEEP
#undef FD_LANES
#undef FD_C
#undef FD_STEP
#undef FD_KEEP
#undef vec
#undef vec_loose
