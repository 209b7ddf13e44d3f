/* palu.h: models of the zoo with the codec palu, calibrated on drawn text; for its tests. */
#pragma once
#include "infer/session.h"
#include "zoo.h"

enum { PALU_TOKENS = 40 };
#define PALU_SEED(i) (9000 + (uint64_t)(i)) /* of calibration text i */
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    RowCodec codec;
    PolicyCfg policy;
    char *path, *text;
} PaluCase;
/* Tokens of a drawn text. */
void palu_text(int tok[PALU_TOKENS], int vocab, uint64_t seed);
/* Calibrates an animal on so many texts into the file, in groups of `heads` lanes. False: its rows are none for the
 * codec, or not for such groups, as the message must say. */
bool palu_calibrate(int animal, int texts, int heads, const char *path);
/* The animal with "palu:SETTINGS", calibrated on one text; false as above, and model_open says so, too. */
bool palu_open(PaluCase *, int animal, const char *settings, ModelOpts);
/* The same in groups of `heads` lanes. False also where a layer's lanes do not divide into groups. */
bool palu_open_groups(PaluCase *, int animal, int heads, const char *settings, ModelOpts);
/* The same model with rows as computed. */
void palu_plain(PaluCase *, int animal, ModelOpts);
void palu_close(PaluCase *);
void palu_session(Session *, PaluCase *, int nseq);
/* n tokens of a sequence; logits (n,V), or NULL. */
void palu_feed(Session *, int seq, int n, const int *tok, real *logits);
/* Logits of every row of a text: `first` tokens, then the rest in pieces of so many. */
void palu_logits(PaluCase *, const int *tok, int first, int piece, real *logits);
/* Sequence 0 has 11 tokens of tok; three more are guessed, the second wrongly, and the first is accepted. Their logits
 * go to x, row 11 on. */
void palu_wrong_guess(Session *, PaluCase *, const int *tok, real *x);
/* What hangs on a comparison of two numbers may turn over by a rounding. */
bool palu_decides(int animal);
/* |a - b| over |b|. */
double palu_distance(const real *a, const real *b, size_t n);
/* The key or value of row `row` of a lane of sequence 0, as the cache gives it. */
void palu_row(const Session *, int layer, int lane, bool value, int row, real *to);
/* Eigenvalue k of a group of the file. */
double palu_eigenvalue(const PaluCase *, int layer, bool value, int group, int k);
