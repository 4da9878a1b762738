package encoding

import "golang.org/x/sys/cpu"

// useF16 is false on processors without AVX2, FMA or F16C, and in tests of the plain code.
// golang.org/x/sys/cpu does not report F16C.
var useF16 = cpu.X86.HasAVX2 && cpu.X86.HasFMA && features()>>29&1 == 1

// dequantize8Fast does as dequantize8 for a first part, and returns the number of units done.
func dequantize8Fast(rows, upper, lower []byte, scales []float32) (units int) {
	if !useF16 || len(scales) == 0 {
		return 0
	}
	n := len(scales)
	dequantize8AVX2(&rows[:2*unit*n][0], &upper[:unit/2*n][0], &lower[:unit/2*n][0], &scales[0], n)
	return n
}

// dequantize4Fast does as dequantize4 for a first part, and returns the number of units done.
func dequantize4Fast(rows, codes []byte, scales []float32) (units int) {
	if !useF16 || len(scales) == 0 {
		return 0
	}
	n := len(scales)
	dequantize4AVX2(&rows[:2*unit*n][0], &codes[:unit/2*n][0], &scales[0], n)
	return n
}

// dequantizeChannelsFast does as dequantizeChannels for a first part, and returns the number of
// units done.
func dequantizeChannelsFast(row, codes []byte, scales, centers []float32) (units int) {
	n := len(scales) / unit
	if !useF16 || n == 0 {
		return 0
	}
	dequantizeChannelsAVX2(&row[:2*unit*n][0], &codes[:unit/2*n][0], &scales[0], &centers[:unit*n][0], n)
	return n
}

// dequantizeRotatedFast does as dequantizeRotated for a first part, and returns the number of
// rotations done.
func dequantizeRotatedFast(rows, codes []byte, scales, centers []float32) (rotations int) {
	if !useF16 || len(scales) == 0 {
		return 0
	}
	n := len(scales)
	dequantizeRotatedAVX2(&rows[:2*rotation*n][0], &codes[:rotation/2*n][0], &scales[0], &centers[:rotation*n][0], n)
	return n
}

// widenFast does as widen for a first part, and returns the number of numbers done.
func widenFast(x []float32, rows []byte) (numbers int) {
	n := len(x) &^ (unit - 1)
	if !useF16 || n == 0 {
		return 0
	}
	widenAVX2(&x[0], &rows[:2*n][0], n/unit)
	return n
}

// rotateFast does as rotateAll for a first part, and returns the number of rotations done.
func rotateFast(x []float32) (rotations int) {
	n := len(x) / rotation
	if !useF16 || n == 0 {
		return 0
	}
	rotateAVX2(&x[0], n)
	return n
}

// largestFast returns the largest magnitude of units of numbers, and false if it is not computed.
func largestFast(x []float32) (largest float32, ok bool) {
	if !useF16 || len(x) < unit {
		return 0, false
	}
	return largestAVX2(&x[0], len(x)/unit), true
}

// codes4Fast makes the codes of units of numbers, and returns the number of units done.
func codes4Fast(codes []byte, x []float32, by float32) (units int) {
	n := len(x) / unit
	if !useF16 || n == 0 {
		return 0
	}
	codes4AVX2(&codes[:unit*n][0], &x[0], by, n)
	return n
}

// codes8Fast does as codes4Fast for codes of 8 bits.
func codes8Fast(codes []byte, x []float32, by float32) (units int) {
	n := len(x) / unit
	if !useF16 || n == 0 {
		return 0
	}
	codes8AVX2(&codes[:unit*n][0], &x[0], by, n)
	return n
}

// largerFast does as larger for a first part, and returns the number of numbers done.
func largerFast(signed, x []float32) (numbers int) {
	n := len(x) / 8
	if !useF16 || n == 0 {
		return 0
	}
	largerAVX2(&signed[:8*n][0], &x[0], n)
	return 8 * n
}

// fit4Fast does as fit4 for a first part, and returns the number of numbers done.
func fit4Fast(codes []byte, x, by, xq, qq []float32) (numbers int) {
	n := len(x) / unit
	if !useF16 || n == 0 {
		return 0
	}
	fit4AVX2(&codes[:unit*n][0], &x[0], &by[:unit*n][0], &xq[:unit*n][0], &qq[:unit*n][0], n)
	return unit * n
}

// features returns register ECX of CPUID's leaf 1.
func features() uint32

// n counts units, rotations, or in largerAVX2 eight numbers. lossy_amd64.s has all.
//
//go:noescape
func dequantize8AVX2(rows, upper, lower *byte, scales *float32, n int)

//go:noescape
func dequantize4AVX2(rows, codes *byte, scales *float32, n int)

//go:noescape
func dequantizeChannelsAVX2(row, codes *byte, scales, centers *float32, n int)

//go:noescape
func dequantizeRotatedAVX2(rows, codes *byte, scales, centers *float32, n int)

//go:noescape
func widenAVX2(x *float32, rows *byte, n int)

//go:noescape
func rotateAVX2(x *float32, n int)

//go:noescape
func largestAVX2(x *float32, n int) float32

//go:noescape
func codes4AVX2(codes *byte, x *float32, by float32, n int)

//go:noescape
func codes8AVX2(codes *byte, x *float32, by float32, n int)

//go:noescape
func largerAVX2(signed, x *float32, n int)

//go:noescape
func fit4AVX2(codes *byte, x, by, xq, qq *float32, n int)
