#include "textflag.h"

// The fields of streams.
#define BITS 0
#define AT 32
#define OUT 64

// LOOKUP takes the next codes of a stream and writes 4 bytes at the pointer out, of which the entry's
// symbols count. R14 has the table, R15 the number 64-11.
#define LOOKUP(bits, out, t) \
	SHRXQ R15, bits, t; \
	MOVL (R14)(t*4), t; \
	SHLXQ t, bits, bits; \
	SHRL $6, t; \
	MOVL t, (out); \
	SHRL $24, t; \
	ADDQ t, out

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
	LOOKUP(AX, SI, R10); \
	LOOKUP(BX, DI, R11); \
	LOOKUP(CX, R8, R12); \
	LOOKUP(DX, R9, R13)

// func rounds4(s *streams, t *table, stored, plane *byte, n int)
TEXT ·rounds4(SB), NOSPLIT, $40-40
	MOVQ s+0(FP), R10
	MOVQ stored+16(FP), R11
	MOVQ plane+24(FP), R12
	MOVQ n+32(FP), R13
	MOVQ R13, rounds-8(SP)
	MOVQ (AT+0)(R10), AX
	ADDQ R11, AX
	MOVQ AX, at0-16(SP)
	MOVQ (AT+8)(R10), AX
	ADDQ R11, AX
	MOVQ AX, at1-24(SP)
	MOVQ (AT+16)(R10), AX
	ADDQ R11, AX
	MOVQ AX, at2-32(SP)
	MOVQ (AT+24)(R10), AX
	ADDQ R11, AX
	MOVQ AX, at3-40(SP)
	MOVQ (OUT+0)(R10), SI
	MOVQ (OUT+8)(R10), DI
	MOVQ (OUT+16)(R10), R8
	MOVQ (OUT+24)(R10), R9
	ADDQ R12, SI
	ADDQ R12, DI
	ADDQ R12, R8
	ADDQ R12, R9
	MOVQ (BITS+0)(R10), AX
	MOVQ (BITS+8)(R10), BX
	MOVQ (BITS+16)(R10), CX
	MOVQ (BITS+24)(R10), DX
	MOVQ t+8(FP), R14
	MOVQ $53, R15

round:
	REFILL(AX, at0-16(SP), R10, R11)
	REFILL(BX, at1-24(SP), R12, R13)
	REFILL(CX, at2-32(SP), R10, R11)
	REFILL(DX, at3-40(SP), R12, R13)
	LOOKUPS4
	LOOKUPS4
	LOOKUPS4
	LOOKUPS4
	LOOKUPS4
	DECQ rounds-8(SP)
	JNZ round

	MOVQ s+0(FP), R10
	MOVQ stored+16(FP), R11
	MOVQ plane+24(FP), R12
	MOVQ AX, (BITS+0)(R10)
	MOVQ BX, (BITS+8)(R10)
	MOVQ CX, (BITS+16)(R10)
	MOVQ DX, (BITS+24)(R10)
	SUBQ R12, SI
	SUBQ R12, DI
	SUBQ R12, R8
	SUBQ R12, R9
	MOVQ SI, (OUT+0)(R10)
	MOVQ DI, (OUT+8)(R10)
	MOVQ R8, (OUT+16)(R10)
	MOVQ R9, (OUT+24)(R10)
	MOVQ at0-16(SP), AX
	SUBQ R11, AX
	MOVQ AX, (AT+0)(R10)
	MOVQ at1-24(SP), AX
	SUBQ R11, AX
	MOVQ AX, (AT+8)(R10)
	MOVQ at2-32(SP), AX
	SUBQ R11, AX
	MOVQ AX, (AT+16)(R10)
	MOVQ at3-40(SP), AX
	SUBQ R11, AX
	MOVQ AX, (AT+24)(R10)
	RET

// func rounds1(s *streams, t *table, stored, plane *byte, n, i int)
TEXT ·rounds1(SB), NOSPLIT, $0-48
	MOVQ s+0(FP), DX
	MOVQ i+40(FP), AX
	LEAQ (DX)(AX*8), DX
	MOVQ (BITS)(DX), AX
	MOVQ (AT)(DX), BX
	ADDQ stored+16(FP), BX
	MOVQ (OUT)(DX), SI
	ADDQ plane+24(FP), SI
	MOVQ n+32(FP), CX
	MOVQ t+8(FP), R14
	MOVQ $53, R15

round:
	REFILL(AX, BX, R10, R11)
	LOOKUP(AX, SI, R10)
	LOOKUP(AX, SI, R10)
	LOOKUP(AX, SI, R10)
	LOOKUP(AX, SI, R10)
	LOOKUP(AX, SI, R10)
	DECQ CX
	JNZ round

	MOVQ AX, (BITS)(DX)
	SUBQ stored+16(FP), BX
	MOVQ BX, (AT)(DX)
	SUBQ plane+24(FP), SI
	MOVQ SI, (OUT)(DX)
	RET
