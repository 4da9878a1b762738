#include "textflag.h"

// func features() uint32
TEXT ·features(SB), NOSPLIT, $0-4
	MOVL $1, AX
	XORL CX, CX
	CPUID
	MOVL CX, ret+0(FP)
	RET

// Registers of the functions below: DI rows, SI codes, BX scales, DX centers, CX n; X13 has 0x0f in
// each byte, X14 has 8, or 0x80 for codes of 8 bits; DX has lower halves of these.

// odd, pairs and lanes are the signs of the sums of Walsh and Hadamard at distances 1, 2 and 4.
DATA nibble<>+0(SB)/8, $0x0f0f0f0f0f0f0f0f
DATA nibble<>+8(SB)/8, $0x0f0f0f0f0f0f0f0f
GLOBL nibble<>(SB), RODATA|NOPTR, $16

DATA eight<>+0(SB)/8, $0x0808080808080808
DATA eight<>+8(SB)/8, $0x0808080808080808
GLOBL eight<>(SB), RODATA|NOPTR, $16

DATA sign<>+0(SB)/8, $0x8080808080808080
DATA sign<>+8(SB)/8, $0x8080808080808080
GLOBL sign<>(SB), RODATA|NOPTR, $16

DATA odd<>+0(SB)/8, $0xbf8000003f800000
DATA odd<>+8(SB)/8, $0xbf8000003f800000
DATA odd<>+16(SB)/8, $0xbf8000003f800000
DATA odd<>+24(SB)/8, $0xbf8000003f800000
GLOBL odd<>(SB), RODATA|NOPTR, $32

DATA pairs<>+0(SB)/8, $0x3f8000003f800000
DATA pairs<>+8(SB)/8, $0xbf800000bf800000
DATA pairs<>+16(SB)/8, $0x3f8000003f800000
DATA pairs<>+24(SB)/8, $0xbf800000bf800000
GLOBL pairs<>(SB), RODATA|NOPTR, $32

DATA lanes<>+0(SB)/8, $0x3f8000003f800000
DATA lanes<>+8(SB)/8, $0x3f8000003f800000
DATA lanes<>+16(SB)/8, $0xbf800000bf800000
DATA lanes<>+24(SB)/8, $0xbf800000bf800000
GLOBL lanes<>(SB), RODATA|NOPTR, $32

DATA eighth<>+0(SB)/4, $0x3e000000
GLOBL eighth<>(SB), RODATA|NOPTR, $4

// order puts packed numbers back into order.
DATA magnitude<>+0(SB)/4, $0x7fffffff
GLOBL magnitude<>(SB), RODATA|NOPTR, $4

DATA eightAndHalf<>+0(SB)/4, $0x41080000
GLOBL eightAndHalf<>(SB), RODATA|NOPTR, $4

DATA half<>+0(SB)/4, $0x3f000000
GLOBL half<>(SB), RODATA|NOPTR, $4

DATA one<>+0(SB)/4, $0x3f800000
GLOBL one<>(SB), RODATA|NOPTR, $4

DATA minusEight<>+0(SB)/4, $0xfffffff8
GLOBL minusEight<>(SB), RODATA|NOPTR, $4

DATA fifteen<>+0(SB)/4, $15
GLOBL fifteen<>(SB), RODATA|NOPTR, $4

DATA order<>+0(SB)/8, $0x0000000400000000
DATA order<>+8(SB)/8, $0x0000000500000001
DATA order<>+16(SB)/8, $0x0000000600000002
DATA order<>+24(SB)/8, $0x0000000700000003
GLOBL order<>(SB), RODATA|NOPTR, $32

// CODES4 reads 32 codes of 4 bits at an offset into a, b, c, d, as numbers in f32.
#define CODES4(at, a, b, c, d, xa, xb, xc, xd) \
	VMOVDQU at(SI), xa; \
	VPSRLW $4, xa, xc; \
	VPAND X13, xa, xa; \
	VPAND X13, xc, xc; \
	VPSUBB X14, xa, xa; \
	VPSUBB X14, xc, xc; \
	VPSRLDQ $8, xa, xb; \
	VPSRLDQ $8, xc, xd; \
	VPMOVSXBD xa, a; \
	VPMOVSXBD xb, b; \
	VPMOVSXBD xc, c; \
	VPMOVSXBD xd, d; \
	VCVTDQ2PS a, a; \
	VCVTDQ2PS b, b; \
	VCVTDQ2PS c, c; \
	VCVTDQ2PS d, d

// func dequantize8AVX2(rows, upper, lower *byte, scales *float32, n int)
TEXT ·dequantize8AVX2(SB), NOSPLIT, $0-40
	MOVQ rows+0(FP), DI
	MOVQ upper+8(FP), SI
	MOVQ lower+16(FP), DX
	MOVQ scales+24(FP), BX
	MOVQ n+32(FP), CX
	VMOVDQU nibble<>(SB), X13
	VMOVDQU sign<>(SB), X14

eightbits:
	VBROADCASTSS (BX), Y4
	VMOVDQU (SI), X0
	VMOVDQU (DX), X1
	VPAND X13, X0, X2
	VPANDN X0, X13, X3
	VPSLLW $4, X2, X2
	VPAND X13, X1, X0
	VPSRLW $4, X1, X1
	VPAND X13, X1, X1
	VPOR X0, X2, X0
	VPOR X1, X3, X2
	VPXOR X14, X0, X0 // the first 16 codes
	VPXOR X14, X2, X2
	VPSRLDQ $8, X0, X1
	VPSRLDQ $8, X2, X3
	VPMOVSXBD X0, Y0
	VPMOVSXBD X1, Y1
	VPMOVSXBD X2, Y2
	VPMOVSXBD X3, Y3
	VCVTDQ2PS Y0, Y0
	VCVTDQ2PS Y1, Y1
	VCVTDQ2PS Y2, Y2
	VCVTDQ2PS Y3, Y3
	VMULPS Y4, Y0, Y0
	VMULPS Y4, Y1, Y1
	VMULPS Y4, Y2, Y2
	VMULPS Y4, Y3, Y3
	VCVTPS2PH $0, Y0, (DI)
	VCVTPS2PH $0, Y1, 16(DI)
	VCVTPS2PH $0, Y2, 32(DI)
	VCVTPS2PH $0, Y3, 48(DI)
	ADDQ $64, DI
	ADDQ $16, SI
	ADDQ $16, DX
	ADDQ $4, BX
	DECQ CX
	JNZ eightbits
	VZEROUPPER
	RET

// func dequantize4AVX2(rows, codes *byte, scales *float32, n int)
TEXT ·dequantize4AVX2(SB), NOSPLIT, $0-32
	MOVQ rows+0(FP), DI
	MOVQ codes+8(FP), SI
	MOVQ scales+16(FP), BX
	MOVQ n+24(FP), CX
	VMOVDQU nibble<>(SB), X13
	VMOVDQU eight<>(SB), X14

fourbits:
	VBROADCASTSS (BX), Y4
	CODES4(0, Y0, Y1, Y2, Y3, X0, X1, X2, X3)
	VMULPS Y4, Y0, Y0
	VMULPS Y4, Y1, Y1
	VMULPS Y4, Y2, Y2
	VMULPS Y4, Y3, Y3
	VCVTPS2PH $0, Y0, (DI)
	VCVTPS2PH $0, Y1, 16(DI)
	VCVTPS2PH $0, Y2, 32(DI)
	VCVTPS2PH $0, Y3, 48(DI)
	ADDQ $64, DI
	ADDQ $16, SI
	ADDQ $4, BX
	DECQ CX
	JNZ fourbits
	VZEROUPPER
	RET

// func dequantizeChannelsAVX2(row, codes *byte, scales, centers *float32, n int)
TEXT ·dequantizeChannelsAVX2(SB), NOSPLIT, $0-40
	MOVQ row+0(FP), DI
	MOVQ codes+8(FP), SI
	MOVQ scales+16(FP), BX
	MOVQ centers+24(FP), DX
	MOVQ n+32(FP), CX
	VMOVDQU nibble<>(SB), X13
	VMOVDQU eight<>(SB), X14

channels:
	CODES4(0, Y0, Y1, Y2, Y3, X0, X1, X2, X3)
	VMULPS (BX), Y0, Y0
	VMULPS 32(BX), Y1, Y1
	VMULPS 64(BX), Y2, Y2
	VMULPS 96(BX), Y3, Y3
	VADDPS (DX), Y0, Y0
	VADDPS 32(DX), Y1, Y1
	VADDPS 64(DX), Y2, Y2
	VADDPS 96(DX), Y3, Y3
	VCVTPS2PH $0, Y0, (DI)
	VCVTPS2PH $0, Y1, 16(DI)
	VCVTPS2PH $0, Y2, 32(DI)
	VCVTPS2PH $0, Y3, 48(DI)
	ADDQ $64, DI
	ADDQ $16, SI
	ADDQ $128, BX
	ADDQ $128, DX
	DECQ CX
	JNZ channels
	VZEROUPPER
	RET

// WITHIN adds and subtracts at distances 1, 2 and 4 in one register. The product with 1 or -1 is
// exact, so that FMA rounds as a sum does.
#define WITHIN(a) \
	VPERMILPS $0xb1, a, Y15; \
	VFMADD213PS Y15, Y8, a; \
	VPERMILPS $0x4e, a, Y15; \
	VFMADD213PS Y15, Y9, a; \
	VPERM2F128 $0x01, a, a, Y15; \
	VFMADD213PS Y15, Y10, a

// BETWEEN adds and subtracts two registers.
#define BETWEEN(a, b) \
	VSUBPS b, a, Y15; \
	VADDPS b, a, a; \
	VMOVAPS Y15, b

// ROTATE transforms 64 numbers in Y0 to Y7.
#define ROTATE \
	WITHIN(Y0); \
	WITHIN(Y1); \
	WITHIN(Y2); \
	WITHIN(Y3); \
	WITHIN(Y4); \
	WITHIN(Y5); \
	WITHIN(Y6); \
	WITHIN(Y7); \
	BETWEEN(Y0, Y1); \
	BETWEEN(Y2, Y3); \
	BETWEEN(Y4, Y5); \
	BETWEEN(Y6, Y7); \
	BETWEEN(Y0, Y2); \
	BETWEEN(Y1, Y3); \
	BETWEEN(Y4, Y6); \
	BETWEEN(Y5, Y7); \
	BETWEEN(Y0, Y4); \
	BETWEEN(Y1, Y5); \
	BETWEEN(Y2, Y6); \
	BETWEEN(Y3, Y7)

// ROUND scales a register, adds centers, and writes eight numbers.
#define ROUND(a, i) \
	VMULPS Y12, a, a; \
	VADDPS (32*i)(DX), a, a; \
	VCVTPS2PH $0, a, (16*i)(DI)

// func dequantizeRotatedAVX2(rows, codes *byte, scales, centers *float32, n int)
TEXT ·dequantizeRotatedAVX2(SB), NOSPLIT, $0-40
	MOVQ rows+0(FP), DI
	MOVQ codes+8(FP), SI
	MOVQ scales+16(FP), BX
	MOVQ centers+24(FP), DX
	MOVQ n+32(FP), CX
	VMOVDQU nibble<>(SB), X13
	VMOVDQU eight<>(SB), X14
	VMOVUPS odd<>(SB), Y8
	VMOVUPS pairs<>(SB), Y9
	VMOVUPS lanes<>(SB), Y10
	VBROADCASTSS eighth<>(SB), Y12

rotations:
	VBROADCASTSS (BX), Y11
	CODES4(0, Y0, Y1, Y2, Y3, X0, X1, X2, X3)
	CODES4(16, Y4, Y5, Y6, Y7, X4, X5, X6, X7)
	VMULPS Y11, Y0, Y0
	VMULPS Y11, Y1, Y1
	VMULPS Y11, Y2, Y2
	VMULPS Y11, Y3, Y3
	VMULPS Y11, Y4, Y4
	VMULPS Y11, Y5, Y5
	VMULPS Y11, Y6, Y6
	VMULPS Y11, Y7, Y7
	ROTATE
	ROUND(Y0, 0)
	ROUND(Y1, 1)
	ROUND(Y2, 2)
	ROUND(Y3, 3)
	ROUND(Y4, 4)
	ROUND(Y5, 5)
	ROUND(Y6, 6)
	ROUND(Y7, 7)
	ADDQ $128, DI
	ADDQ $32, SI
	ADDQ $4, BX
	ADDQ $256, DX
	DECQ CX
	JNZ rotations
	VZEROUPPER
	RET

// func widenAVX2(x *float32, rows *byte, n int)
TEXT ·widenAVX2(SB), NOSPLIT, $0-24
	MOVQ x+0(FP), DI
	MOVQ rows+8(FP), SI
	MOVQ n+16(FP), CX

widen:
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VCVTPH2PS 32(SI), Y2
	VCVTPH2PS 48(SI), Y3
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	ADDQ $64, SI
	ADDQ $128, DI
	DECQ CX
	JNZ widen
	VZEROUPPER
	RET

// BYTES packs 32 numbers of 32 bits, in Y0 to Y3, into bytes in Y0.
#define BYTES \
	VPACKSSDW Y1, Y0, Y0; \
	VPACKSSDW Y3, Y2, Y2; \
	VPACKUSWB Y2, Y0, Y0; \
	VPERMD Y0, Y14, Y0

// func largestAVX2(x *float32, n int) float32
TEXT ·largestAVX2(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS magnitude<>(SB), Y15
	VXORPS Y0, Y0, Y0

largest:
	VANDPS (SI), Y15, Y1
	VANDPS 32(SI), Y15, Y2
	VANDPS 64(SI), Y15, Y3
	VANDPS 96(SI), Y15, Y4
	VMAXPS Y2, Y1, Y1
	VMAXPS Y4, Y3, Y3
	VMAXPS Y3, Y1, Y1
	VMAXPS Y1, Y0, Y0
	ADDQ $128, SI
	DECQ CX
	JNZ largest
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0x4e, X0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0xb1, X0, X1
	VMAXPS X1, X0, X0
	VMOVSS X0, ret+16(FP)
	VZEROUPPER
	RET

#define CODE4(a) \
	VMULPS Y13, a, a; \
	VADDPS Y12, a, a; \
	VCVTTPS2DQ a, a

// func codes4AVX2(codes *byte, x *float32, by float32, n int)
TEXT ·codes4AVX2(SB), NOSPLIT, $0-32
	MOVQ codes+0(FP), DI
	MOVQ x+8(FP), SI
	VBROADCASTSS by+16(FP), Y13
	MOVQ n+24(FP), CX
	VBROADCASTSS eightAndHalf<>(SB), Y12
	VMOVDQU nibble<>(SB), X11
	VINSERTI128 $1, X11, Y11, Y11
	VMOVDQU order<>(SB), Y14

codes4:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS 64(SI), Y2
	VMOVUPS 96(SI), Y3
	CODE4(Y0)
	CODE4(Y1)
	CODE4(Y2)
	CODE4(Y3)
	BYTES
	VPMINUB Y11, Y0, Y0
	VMOVDQU Y0, (DI)
	ADDQ $32, DI
	ADDQ $128, SI
	DECQ CX
	JNZ codes4
	VZEROUPPER
	RET

// CODE8 rounds a product to the nearest integer, halves away from zero.
#define CODE8(a) \
	VMULPS Y13, a, a; \
	VROUNDPS $3, a, Y5; \
	VSUBPS Y5, a, Y6; \
	VANDPS Y15, Y6, Y6; \
	VCMPPS $13, Y12, Y6, Y6; \
	VANDNPS a, Y15, Y7; \
	VORPS Y11, Y7, Y7; \
	VANDPS Y6, Y7, Y7; \
	VADDPS Y7, Y5, Y5; \
	VCVTTPS2DQ Y5, a

// func codes8AVX2(codes *byte, x *float32, by float32, n int)
TEXT ·codes8AVX2(SB), NOSPLIT, $0-32
	MOVQ codes+0(FP), DI
	MOVQ x+8(FP), SI
	VBROADCASTSS by+16(FP), Y13
	MOVQ n+24(FP), CX
	VBROADCASTSS half<>(SB), Y12
	VBROADCASTSS one<>(SB), Y11
	VBROADCASTSS magnitude<>(SB), Y15
	VMOVDQU order<>(SB), Y14
	VMOVDQU sign<>(SB), X10
	VINSERTI128 $1, X10, Y10, Y10

codes8:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VMOVUPS 64(SI), Y2
	VMOVUPS 96(SI), Y3
	CODE8(Y0)
	CODE8(Y1)
	CODE8(Y2)
	CODE8(Y3)
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKSSWB Y2, Y0, Y0
	VPERMD Y0, Y14, Y0
	VPXOR Y10, Y0, Y0
	VMOVDQU Y0, (DI)
	ADDQ $32, DI
	ADDQ $128, SI
	DECQ CX
	JNZ codes8
	VZEROUPPER
	RET

// func largerAVX2(signed, x *float32, n int)
TEXT ·largerAVX2(SB), NOSPLIT, $0-24
	MOVQ signed+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS magnitude<>(SB), Y15

larger:
	VMOVUPS (DI), Y0
	VMOVUPS (SI), Y1
	VANDPS Y15, Y0, Y2
	VANDPS Y15, Y1, Y3
	VCMPPS $1, Y3, Y2, Y4
	VBLENDVPS Y4, Y1, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, DI
	ADDQ $32, SI
	DECQ CX
	JNZ larger
	VZEROUPPER
	RET

// FIT4 makes codes of eight numbers, at an offset, and adds to the sums.
#define FIT4(at, a) \
	VMOVUPS at(SI), Y5; \
	VMULPS at(BX), Y5, a; \
	VADDPS Y12, a, a; \
	VCVTTPS2DQ a, a; \
	VPMINSD Y11, a, a; \
	VPADDD Y10, a, Y6; \
	VCVTDQ2PS Y6, Y6; \
	VMULPS Y6, Y5, Y7; \
	VADDPS at(R8), Y7, Y7; \
	VMOVUPS Y7, at(R8); \
	VMULPS Y6, Y6, Y6; \
	VADDPS at(R9), Y6, Y6; \
	VMOVUPS Y6, at(R9)

// func fit4AVX2(codes *byte, x, by, xq, qq *float32, n int)
TEXT ·fit4AVX2(SB), NOSPLIT, $0-48
	MOVQ codes+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ by+16(FP), BX
	MOVQ xq+24(FP), R8
	MOVQ qq+32(FP), R9
	MOVQ n+40(FP), CX
	VBROADCASTSS eightAndHalf<>(SB), Y12
	VBROADCASTSS fifteen<>(SB), Y11
	VBROADCASTSS minusEight<>(SB), Y10
	VMOVDQU order<>(SB), Y14

fit4:
	FIT4(0, Y0)
	FIT4(32, Y1)
	FIT4(64, Y2)
	FIT4(96, Y3)
	BYTES
	VMOVDQU Y0, (DI)
	ADDQ $32, DI
	ADDQ $128, SI
	ADDQ $128, BX
	ADDQ $128, R8
	ADDQ $128, R9
	DECQ CX
	JNZ fit4
	VZEROUPPER
	RET

// func rotateAVX2(x *float32, n int)
TEXT ·rotateAVX2(SB), NOSPLIT, $0-16
	MOVQ x+0(FP), DI
	MOVQ n+8(FP), CX
	VMOVUPS odd<>(SB), Y8
	VMOVUPS pairs<>(SB), Y9
	VMOVUPS lanes<>(SB), Y10
	VBROADCASTSS eighth<>(SB), Y12

turns:
	VMOVUPS (DI), Y0
	VMOVUPS 32(DI), Y1
	VMOVUPS 64(DI), Y2
	VMOVUPS 96(DI), Y3
	VMOVUPS 128(DI), Y4
	VMOVUPS 160(DI), Y5
	VMOVUPS 192(DI), Y6
	VMOVUPS 224(DI), Y7
	ROTATE
	VMULPS Y12, Y0, Y0
	VMULPS Y12, Y1, Y1
	VMULPS Y12, Y2, Y2
	VMULPS Y12, Y3, Y3
	VMULPS Y12, Y4, Y4
	VMULPS Y12, Y5, Y5
	VMULPS Y12, Y6, Y6
	VMULPS Y12, Y7, Y7
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	VMOVUPS Y4, 128(DI)
	VMOVUPS Y5, 160(DI)
	VMOVUPS Y6, 192(DI)
	VMOVUPS Y7, 224(DI)
	ADDQ $256, DI
	DECQ CX
	JNZ turns
	VZEROUPPER
	RET
