#include "textflag.h"

// split2AVX2 and merge2AVX2 have the same parameters. A step takes 32 numbers of 2 bytes.
#define PARAMETERS \
	MOVQ rows+0(FP), DX; \
	MOVQ lo+8(FP), DI; \
	MOVQ hi+16(FP), SI; \
	MOVQ bases+24(FP), BX; \
	MOVQ n+32(FP), CX; \
	MOVQ rotate+40(FP), AX; \
	MOVQ AX, X8; \
	MOVQ $16, R8; \
	SUBQ AX, R8; \
	MOVQ R8, X9

#define ADVANCE \
	ADDQ $64, DX; \
	ADDQ $32, DI; \
	ADDQ $32, SI; \
	ADDQ $32, BX; \
	SUBQ $32, CX

// func split2AVX2(rows, lo, hi, bases *byte, n, rotate int)
//
// x = rows<<rotate | rows>>(16-rotate): lo gets the low bytes of x, hi the high bytes less the
// bases.
TEXT ·split2AVX2(SB), NOSPLIT, $0-48
	PARAMETERS
	VPCMPEQW Y10, Y10, Y10
	VPSRLW $8, Y10, Y10 // 0x00ff in each number

split:
	VMOVDQU (DX), Y0
	VMOVDQU 32(DX), Y1
	VPSLLW X8, Y0, Y2
	VPSRLW X9, Y0, Y0
	VPOR Y2, Y0, Y0
	VPSLLW X8, Y1, Y3
	VPSRLW X9, Y1, Y1
	VPOR Y3, Y1, Y1
	VPAND Y10, Y0, Y2
	VPAND Y10, Y1, Y3
	VPACKUSWB Y3, Y2, Y2
	VPERMQ $0xd8, Y2, Y2
	VMOVDQU Y2, (DI)
	VPSRLW $8, Y0, Y0
	VPSRLW $8, Y1, Y1
	VPACKUSWB Y1, Y0, Y0
	VPERMQ $0xd8, Y0, Y0
	VMOVDQU (BX), Y4
	VPSUBB Y4, Y0, Y0
	VMOVDQU Y0, (SI)
	ADVANCE
	JNZ split
	VZEROUPPER
	RET

// func merge2AVX2(rows, lo, hi, bases *byte, n, rotate int)
//
// x = lo | (hi+bases)<<8: rows get x, rotated to the right.
TEXT ·merge2AVX2(SB), NOSPLIT, $0-48
	PARAMETERS

merge:
	VMOVDQU (DI), Y0
	VMOVDQU (SI), Y1
	VMOVDQU (BX), Y2
	VPADDB Y2, Y1, Y1
	VPERMQ $0xd8, Y0, Y0
	VPERMQ $0xd8, Y1, Y1
	VPUNPCKLBW Y1, Y0, Y2
	VPUNPCKHBW Y1, Y0, Y3
	VPSRLW X8, Y2, Y4
	VPSLLW X9, Y2, Y2
	VPOR Y4, Y2, Y2
	VPSRLW X8, Y3, Y5
	VPSLLW X9, Y3, Y3
	VPOR Y5, Y3, Y3
	VMOVDQU Y2, (DX)
	VMOVDQU Y3, 32(DX)
	ADVANCE
	JNZ merge
	VZEROUPPER
	RET

// Shifts of a group's 8 bytes for each 8 numbers.
DATA apartShifts<>+0(SB)/8, $0
DATA apartShifts<>+8(SB)/8, $2
DATA apartShifts<>+16(SB)/8, $4
DATA apartShifts<>+24(SB)/8, $6
GLOBL apartShifts<>(SB), RODATA|NOPTR, $32

// func putTogetherAVX2(high, apart *byte, n int)
//
// Each step adds the bits of a group to 32 bytes.
TEXT ·putTogetherAVX2(SB), NOSPLIT, $0-24
	MOVQ high+0(FP), DI
	MOVQ apart+8(FP), SI
	MOVQ n+16(FP), CX
	VMOVDQU apartShifts<>(SB), Y1
	MOVQ $0x0303030303030303, AX
	MOVQ AX, X2
	VPBROADCASTQ X2, Y2

group:
	VPBROADCASTQ (SI), Y0
	VPSRLVQ Y1, Y0, Y0
	VPAND Y2, Y0, Y0
	VPOR (DI), Y0, Y0
	VMOVDQU Y0, (DI)
	ADDQ $8, SI
	ADDQ $32, DI
	SUBQ $32, CX
	JNZ group
	VZEROUPPER
	RET
