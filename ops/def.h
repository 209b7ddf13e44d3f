/* def.h: the macros for a file that makes something of every op in ops.def. In it:
 *   #define DEF(result, op, flops, ...) result my_##op(Run *r OP_EACH(OP_PARAM, __VA_ARGS__));
 *   #include "ops.def"
 * declares one function for each op. ops.def undefines DEF. */
#pragma once

/* Of one argument: ", type name" and ", name". */
#define OP_PARAM(type, name, ...) , type name
#define OP_ARG(type, name, ...)   , name

/* m of each argument, of which an op has 1 to 12. */
#define OP_EACH(m, ...) \
    OP_COUNTED(__VA_ARGS__, OP_12, OP_11, OP_10, OP_9, OP_8, OP_7, OP_6, OP_5, OP_4, OP_3, OP_2, OP_1, )(m, __VA_ARGS__)
#define OP_COUNTED(a, b, c, d, e, f, g, h, i, j, k, l, n, ...) n
#define OP_1(m, x)                                             m x
#define OP_2(m, x, ...)                                        m x OP_1(m, __VA_ARGS__)
#define OP_3(m, x, ...)                                        m x OP_2(m, __VA_ARGS__)
#define OP_4(m, x, ...)                                        m x OP_3(m, __VA_ARGS__)
#define OP_5(m, x, ...)                                        m x OP_4(m, __VA_ARGS__)
#define OP_6(m, x, ...)                                        m x OP_5(m, __VA_ARGS__)
#define OP_7(m, x, ...)                                        m x OP_6(m, __VA_ARGS__)
#define OP_8(m, x, ...)                                        m x OP_7(m, __VA_ARGS__)
#define OP_9(m, x, ...)                                        m x OP_8(m, __VA_ARGS__)
#define OP_10(m, x, ...)                                       m x OP_9(m, __VA_ARGS__)
#define OP_11(m, x, ...)                                       m x OP_10(m, __VA_ARGS__)
#define OP_12(m, x, ...)                                       m x OP_11(m, __VA_ARGS__)
