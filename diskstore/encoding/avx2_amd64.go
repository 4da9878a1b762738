package encoding

import "golang.org/x/sys/cpu"

// useF16 is false on processors without AVX2, FMA or F16C, and in tests of the plain code.
// golang.org/x/sys/cpu does not report F16C.
var useF16 = cpu.X86.HasAVX2 && cpu.X86.HasFMA && features()>>29&1 == 1

// fast returns how many of n pieces of numbers are done by instructions for F16: all or none.
func fast(n int) int {
	if !useF16 {
		return 0
	}
	return n
}

// dequantize8Fast does as dequantize8 for a first part, and returns the number of units done.
func dequantize8Fast(rows, upper, lower []byte, scales []float32) (units int) {
	n := fast(len(scales))
	if n > 0 {
		dequantize8AVX2(&rows[:2*unit*n][0], &upper[:unit/2*n][0], &lower[:unit/2*n][0], &scales[0], n)
	}
	return n
}

// dequantize4Fast does as dequantize4 for a first part, and returns the number of units done.
func dequantize4Fast(rows, codes []byte, scales []float32) (units int) {
	n := fast(len(scales))
	if n > 0 {
		dequantize4AVX2(&rows[:2*unit*n][0], &codes[:unit/2*n][0], &scales[0], n)
	}
	return n
}

// dequantizeChannelsFast does as dequantizeChannels for a first part, and returns the number of units done.
func dequantizeChannelsFast(row, codes []byte, scales, centers []float32) (units int) {
	n := fast(len(scales) / unit)
	if n > 0 {
		dequantizeChannelsAVX2(&row[:2*unit*n][0], &codes[:unit/2*n][0], &scales[0], &centers[:unit*n][0], n)
	}
	return n
}

// dequantizeRotatedFast does as dequantizeRotated for a first part, and returns the number of rotations done.
func dequantizeRotatedFast(rows, codes []byte, scales, centers []float32) (rotations int) {
	n := fast(len(scales))
	if n > 0 {
		dequantizeRotatedAVX2(&rows[:2*rotation*n][0], &codes[:rotation/2*n][0], &scales[0], &centers[:rotation*n][0], n)
	}
	return n
}

// widenFast does as widen for a first part, and returns the number of numbers done.
func widenFast(x []float32, rows []byte) (numbers int) {
	n := fast(len(x) / unit)
	if n > 0 {
		widenAVX2(&x[0], &rows[:2*unit*n][0], n)
	}
	return unit * n
}

// rotateFast does as rotateAll for a first part, and returns the number of rotations done.
func rotateFast(x []float32) (rotations int) {
	n := fast(len(x) / rotation)
	if n > 0 {
		rotateAVX2(&x[0], n)
	}
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
	n := fast(len(x) / unit)
	if n > 0 {
		codes4AVX2(&codes[:unit*n][0], &x[0], by, n)
	}
	return n
}

// codes8Fast does as codes4Fast for codes of 8 bits.
func codes8Fast(codes []byte, x []float32, by float32) (units int) {
	n := fast(len(x) / unit)
	if n > 0 {
		codes8AVX2(&codes[:unit*n][0], &x[0], by, n)
	}
	return n
}

// largerFast does as larger for a first part, and returns the number of numbers done.
func largerFast(signed, x []float32) (numbers int) {
	n := fast(len(x) / 8)
	if n > 0 {
		largerAVX2(&signed[:8*n][0], &x[0], n)
	}
	return 8 * n
}

// fit4Fast does as fit4 for a first part, and returns the number of numbers done.
func fit4Fast(codes []byte, x, by, xq, qq []float32) (numbers int) {
	n := fast(len(x) / unit)
	if n > 0 {
		fit4AVX2(&codes[:unit*n][0], &x[0], &by[:unit*n][0], &xq[:unit*n][0], &qq[:unit*n][0], n)
	}
	return unit * n
}

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

// useAVX2 is false on processors without it, and in tests of the plain code.
var useAVX2 = cpu.X86.HasAVX2

// inVectors returns how many of the first n numbers of a row fill vectors.
func inVectors(n int) int {
	if !useAVX2 {
		return 0
	}
	return n &^ 31
}

// split2Fast does as split2 for a first part of a row, and returns the number of numbers done.
func split2Fast(rows, lo, hi, bases []byte, rotate int) int {
	n := inVectors(len(lo))
	if n > 0 {
		split2AVX2(&rows[0], &lo[0], &hi[0], &bases[0], n, rotate)
	}
	return n
}

// merge2Fast does as merge2 for a first part of a row, and returns the number of numbers done.
func merge2Fast(rows, lo, hi, bases []byte, rotate int) int {
	n := inVectors(len(lo))
	if n > 0 {
		merge2AVX2(&rows[0], &lo[0], &hi[0], &bases[0], n, rotate)
	}
	return n
}

// putTogetherFast does as putTogether for a first part of high, and returns its size.
func putTogetherFast(high, apart []byte) int {
	n := inVectors(len(high))
	if n > 0 {
		putTogetherAVX2(&high[0], &apart[0], n)
	}
	return n
}

// n is a multiple of 32. planes_amd64.s has all.
//
//go:noescape
func split2AVX2(rows, lo, hi, bases *byte, n, rotate int)

//go:noescape
func merge2AVX2(rows, lo, hi, bases *byte, n, rotate int)

//go:noescape
func putTogetherAVX2(high, apart *byte, n int)
