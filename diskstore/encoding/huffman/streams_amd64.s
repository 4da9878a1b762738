#include "textflag.h"

// The fields of streams.
#define BITS 0
#define AT 32
#define OUT 64

// LOOKUP takes the next codes of a stream and writes 4 bytes at the pointer out, of which the entry's
// symbols count. DI has the table, R15 the number 64-11. t is one of AX, BX, CX and DX, th its second byte.
#define LOOKUP(bits, out, t, th) \
	SHRXQ R15, bits, t; \
	MOVQ (DI)(t*8), t; \
	SHLXQ t, bits, bits; \
	MOVBLZX th, SI; \
	SHRQ $16, t; \
	MOVL t, (out); \
	ADDQ SI, out

// REFILL moves a stream by the whole bytes that are taken. at has the address of the bytes in bits.
#define REFILL(bits, at, t, u) \
	TZCNTQ bits, t; \
	MOVQ at, u; \
	MOVQ t, bits; \
	SHRQ $3, bits; \
	ANDL $7, t; \
	SUBQ bits, u; \
	MOVQ u, at; \
	MOVQ (u), bits; \
	ORQ $1, bits; \
	SHLXQ t, bits, bits

#define LOOKUPS4 \
	LOOKUP(BITS0, OUT0, AX, AH); \
	LOOKUP(BITS1, OUT1, BX, BH); \
	LOOKUP(BITS2, OUT2, CX, CH); \
	LOOKUP(BITS3, OUT3, DX, DH)

// The registers of the four streams.
#define BITS0 R8
#define BITS1 R9
#define BITS2 R10
#define BITS3 R11
#define OUT0 R12
#define OUT1 R13
#define OUT2 R14
#define OUT3 BP

// The places of their addresses.
#define AT0 at0-16(SP)
#define AT1 at1-24(SP)
#define AT2 at2-32(SP)
#define AT3 at3-40(SP)

// OPEN loads a stream: BX has the streams, CX the stored bytes and DX the plane.
#define OPEN(i, bits, at, out) \
	MOVQ (BITS+8*i)(BX), bits; \
	MOVQ (AT+8*i)(BX), AX; \
	ADDQ CX, AX; \
	MOVQ AX, at; \
	MOVQ (OUT+8*i)(BX), out; \
	ADDQ DX, out

// CLOSE does the reverse.
#define CLOSE(i, bits, at, out) \
	MOVQ bits, (BITS+8*i)(BX); \
	MOVQ at, AX; \
	SUBQ CX, AX; \
	MOVQ AX, (AT+8*i)(BX); \
	SUBQ DX, out; \
	MOVQ out, (OUT+8*i)(BX)

// func rounds4(s *streams, t *table, stored, plane *byte, n int)
TEXT ·rounds4(SB), NOSPLIT, $40-40
	MOVQ s+0(FP), BX
	MOVQ stored+16(FP), CX
	MOVQ plane+24(FP), DX
	OPEN(0, BITS0, AT0, OUT0)
	OPEN(1, BITS1, AT1, OUT1)
	OPEN(2, BITS2, AT2, OUT2)
	OPEN(3, BITS3, AT3, OUT3)
	MOVQ n+32(FP), AX
	MOVQ AX, rounds-8(SP)
	MOVQ t+8(FP), DI
	MOVQ $53, R15

round:
	REFILL(BITS0, AT0, AX, BX)
	REFILL(BITS1, AT1, CX, DX)
	REFILL(BITS2, AT2, AX, BX)
	REFILL(BITS3, AT3, CX, DX)
	LOOKUPS4
	LOOKUPS4
	LOOKUPS4
	LOOKUPS4
	LOOKUPS4
	DECQ rounds-8(SP)
	JNZ round

	MOVQ s+0(FP), BX
	MOVQ stored+16(FP), CX
	MOVQ plane+24(FP), DX
	CLOSE(0, BITS0, AT0, OUT0)
	CLOSE(1, BITS1, AT1, OUT1)
	CLOSE(2, BITS2, AT2, OUT2)
	CLOSE(3, BITS3, AT3, OUT3)
	RET

// func rounds1(s *streams, t *table, stored, plane *byte, n, i int)
TEXT ·rounds1(SB), NOSPLIT, $0-48
	MOVQ s+0(FP), R8
	MOVQ i+40(FP), R9
	LEAQ (R8)(R9*8), R8
	MOVQ (BITS)(R8), R9
	MOVQ (AT)(R8), R10
	ADDQ stored+16(FP), R10
	MOVQ (OUT)(R8), R11
	ADDQ plane+24(FP), R11
	MOVQ n+32(FP), R12
	MOVQ t+8(FP), DI
	MOVQ $53, R15

round:
	REFILL(R9, R10, AX, BX)
	LOOKUP(R9, R11, AX, AH)
	LOOKUP(R9, R11, BX, BH)
	LOOKUP(R9, R11, AX, AH)
	LOOKUP(R9, R11, BX, BH)
	LOOKUP(R9, R11, AX, AH)
	DECQ R12
	JNZ round

	MOVQ R9, (BITS)(R8)
	SUBQ stored+16(FP), R10
	MOVQ R10, (AT)(R8)
	SUBQ plane+24(FP), R11
	MOVQ R11, (OUT)(R8)
	RET
