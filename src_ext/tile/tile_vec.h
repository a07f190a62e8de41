/* Typed part 1: vectors, and fetching any dtype.

   T is the type of elements when fetched, of packed ones and of the sums of their products. A
   packed vector holds FD_C columns of FD_DEEP rows: of float64 one row; of float32 two, whose
   elements lie in FD_LANES next to each other, so that strips are no wider than those of float64
   and less is multiplied below the diagonal; of int16 two rows, both in one int32. */

#define FD_W ((ptrdiff_t)(FD_BYTES / sizeof(T)))
#define FD_C (FD_W / FD_LANES)
#define FD_STEP (FD_PANEL * FD_W + (ptrdiff_t)(64 / sizeof(T)))

#define vec FD_T(fd_vec)
#define vec_loose FD_T(fd_vec_loose)

#ifdef FD_VECTORS
typedef T vec __attribute__((vector_size(FD_BYTES), may_alias));
typedef T vec_loose __attribute__((vector_size(FD_BYTES), aligned(sizeof(T)), may_alias));
FD_INLINE vec FD_T(load)(const T *p) { return *(const vec *)p; }
FD_INLINE vec FD_T(load_loose)(const T *p) { return *(const vec_loose *)p; }
FD_INLINE void FD_T(store)(T *p, vec v) { *(vec *)p = v; }
FD_INLINE void FD_T(store_loose)(T *p, vec v) { *(vec_loose *)p = v; }
FD_INLINE vec FD_T(splat)(T x) { return x - (vec){0}; }
FD_INLINE vec FD_T(add)(vec a, vec b) { return a + b; }
FD_INLINE vec FD_T(sub)(vec a, vec b) { return a - b; }
#else /* plain C: the compiler may vectorise the loops */
typedef struct { T v[FD_BYTES / sizeof(T)]; } vec;
#define FD_EACH for (int i_ = 0; i_ < (int)FD_W; i_++)
FD_INLINE vec FD_T(load)(const T *p) { vec r; FD_EACH r.v[i_] = p[i_]; return r; }
FD_INLINE vec FD_T(load_loose)(const T *p) { return FD_T(load)(p); }
FD_INLINE void FD_T(store)(T *p, vec v) { FD_EACH p[i_] = v.v[i_]; }
FD_INLINE void FD_T(store_loose)(T *p, vec v) { FD_T(store)(p, v); }
FD_INLINE vec FD_T(splat)(T x) { vec r; FD_EACH r.v[i_] = x; return r; }
FD_INLINE vec FD_T(add)(vec a, vec b) { FD_EACH a.v[i_] += b.v[i_]; return a; }
FD_INLINE vec FD_T(sub)(vec a, vec b) { FD_EACH a.v[i_] -= b.v[i_]; return a; }
#undef FD_EACH
#endif

#if FD_LANES == 2
/* All bits of both. */
FD_INLINE vec FD_T(either)(vec a, vec b)
{
#ifdef FD_VECTORS
    return (vec)((fd_words)a | (fd_words)b);
#else
    union { T value; uint32_t bits; } one, other;
    for (int i = 0; i < (int)FD_W; i++) {
        one.value = a.v[i], other.value = b.v[i];
        one.bits |= other.bits;
        a.v[i] = one.value;
    }
    return a;
#endif
}

/* Sums of squares in float32, of values that have the bits `seen`: neither infinite nor zero
   because they left its range, but FD_HUGE and FD_TINY, which are outside it for a panel. */
FD_INLINE vec FD_T(bounded)(vec squares, vec seen)
{
#if defined(__AVX512F__) && FD_BYTES == 64
    const __mmask16 any = _mm512_cmp_ps_mask((__m512)seen, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __m512 most = _mm512_min_ps((__m512)squares, _mm512_set1_ps(FD_HUGE)); /* of NaN, too */
    return (vec)_mm512_mask_max_ps(most, any, most, _mm512_set1_ps(FD_TINY));
#else
    _Alignas(64) T value[FD_BYTES / sizeof(T)], bits[FD_BYTES / sizeof(T)];
    FD_T(store)(value, squares);
    FD_T(store)(bits, seen);
    for (ptrdiff_t i = 0; i < FD_W; i++) {
        const T least = bits[i] != 0 ? FD_TINY : 0; /* whatever their sign */
        value[i] = value[i] < FD_HUGE ? value[i] : FD_HUGE;
        value[i] = value[i] > least ? value[i] : least;
    }
    return FD_T(load)(value);
#endif
}
#endif

/* `count` elements from p, 1 or 2, as often as a vector holds them. */
FD_INLINE vec FD_T(repeat)(const T *p, int count)
{
    if (count == 1)
        return FD_T(splat)(*p);
#ifdef FD_VECTORS
    if (sizeof(T) == 4)
        return (vec)(*(const fd_word *)p - (fd_words){0});
#endif
#if defined(__AVX512F__) && FD_BYTES == 64
    return (vec)_mm512_broadcast_f64x2(_mm_loadu_pd((const double *)p));
#else
    _Alignas(64) T values[FD_BYTES / sizeof(T)];
    for (ptrdiff_t j = 0; j < FD_W; j++)
        values[j] = p[j % 2];
    return FD_T(load)(values);
#endif
}

/* The first `count` elements, zeros behind them; no others are read. */
FD_INLINE vec FD_T(load_part)(const T *p, ptrdiff_t count)
{
#if defined(__AVX512F__) && FD_BYTES == 64
    if (sizeof(T) == 8)
        return (vec)_mm512_maskz_loadu_pd((__mmask8)((1u << count) - 1), p);
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p);
#elif defined(__AVX2__) && FD_BYTES == 32
    if (sizeof(T) == 8)
        return (vec)_mm256_maskload_pd((const double *)p, _mm256_cmpgt_epi64(
            _mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3)));
    return (vec)_mm256_maskload_ps((const float *)p, _mm256_cmpgt_epi32(
        _mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
#else
    _Alignas(64) T values[FD_BYTES / sizeof(T)];
    for (ptrdiff_t j = 0; j < FD_W; j++)
        values[j] = j < count ? p[j] : 0;
    return FD_T(load)(values);
#endif
}

/* A shift as the working type sees it: value plus rest. */
FD_INLINE void FD_T(split)(double shift, T *high, T *low)
{
    *high = (T)shift;
    *low = (T)(shift - (double)*high);
}

#define FD_FETCH(S, VALUE)                                                                         \
    {                                                                                              \
        typedef S FD_LOOSE stored;                                                                 \
        for (ptrdiff_t i = 0; i < rows; i++, from += x->row_step, to += ld) {                      \
            if (x->col_step == (ptrdiff_t)sizeof(S))                                               \
                for (ptrdiff_t j = 0; j < cols; j++)                                               \
                    to[j] = (T)VALUE(((const stored *)from)[j]);                                   \
            else                                                                                   \
                for (ptrdiff_t j = 0; j < cols; j++)                                               \
                    to[j] = (T)VALUE(*(const stored *)(from + j * x->col_step));                   \
        }                                                                                          \
        break;                                                                                     \
    }

/* Copy and convert a block of x; `to` has rows of `ld` elements. */
static void FD_T(fetch)(const fd_matrix *x, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t col,
                        ptrdiff_t cols, T *restrict to, ptrdiff_t ld)
{
    const char *from = x->data + row * x->row_step + col * x->col_step;
    switch (x->dtype) {
    case FD_I1: FD_FETCH(int8_t, )
    case FD_U1: FD_FETCH(uint8_t, )
#if FD_DEEP == FD_LANES /* floats */
    case FD_F8: FD_FETCH(double, )
    case FD_F4: FD_FETCH(float, )
    case FD_F2: FD_FETCH(uint16_t, fd_half)
    case FD_I2: FD_FETCH(int16_t, )
    case FD_U2: FD_FETCH(uint16_t, )
    case FD_I4: FD_FETCH(int32_t, )
    case FD_U4: FD_FETCH(uint32_t, )
    case FD_I8: FD_FETCH(int64_t, )
    case FD_U8: FD_FETCH(uint64_t, )
#endif
    }
}
#undef FD_FETCH

/* Rows of x can be read in place: the working type, contiguous and aligned. */
FD_INLINE int FD_T(in_place)(const fd_matrix *x)
{
    return x->dtype == FD_NATIVE && x->col_step == (ptrdiff_t)sizeof(T) &&
           x->row_step % (ptrdiff_t)sizeof(T) == 0 && (uintptr_t)x->data % sizeof(T) == 0;
}
