package encoding

import (
	"encoding/binary"

	"github.com/x448/float16"
)

// dequantize8 fills rows, of f16, from the upper and lower halves of codes of 8 bits, and a scale for
// each unit.
func dequantize8(rows, upper, lower []byte, scales []float32) {
	done := dequantize8Fast(rows, upper, lower, scales)
	for u := done; u < len(scales); u++ {
		for i := range unit {
			q := 16*signed4(upper, u, i) + code4(lower, u, i)
			putHalf(rows[2*(u*unit+i):], float32(q)*scales[u])
		}
	}
}

// dequantize4 fills rows, of f16, from codes of 4 bits and a scale for each unit.
func dequantize4(rows, codes []byte, scales []float32) {
	done := dequantize4Fast(rows, codes, scales)
	for u := done; u < len(scales); u++ {
		for i := range unit {
			putHalf(rows[2*(u*unit+i):], float32(signed4(codes, u, i))*scales[u])
		}
	}
}

// dequantizeChannels fills a row, of f16, from codes of 4 bits, scales and centers, which are as
// many as the row has numbers.
func dequantizeChannels(row, codes []byte, scales, centers []float32) {
	done := dequantizeChannelsFast(row, codes, scales, centers)
	for u := done; u < len(scales)/unit; u++ {
		for i := range unit {
			c := u*unit + i
			putHalf(row[2*c:], float32(float32(signed4(codes, u, i))*scales[c])+centers[c])
		}
	}
}

// dequantizeRotated fills rows, of f16, from codes of 4 bits, a scale for each rotation, and as many
// centers as rows have numbers.
func dequantizeRotated(rows, codes []byte, scales, centers []float32) {
	done := dequantizeRotatedFast(rows, codes, scales, centers)
	var x [rotation]float32
	for r := done; r < len(scales); r++ {
		for i := range rotation {
			x[i] = float32(signed4(codes, r*rotation/unit+i/unit, i%unit)) * scales[r]
		}
		rotate(&x)
		for i, y := range x {
			putHalf(rows[2*(r*rotation+i):], y+centers[r*rotation+i])
		}
	}
}

// code4 returns the code of 4 bits of number i of a unit.
func code4(codes []byte, u, i int) int {
	const half = unit / 2
	return int(codes[u*half+i%half] >> (i / half * 4) & 0xf)
}

// signed4 returns the code of number i of a unit as a multiple of its scale.
func signed4(codes []byte, u, i int) int { return code4(codes, u, i) - 8 }

func rotateAll(x []float32) {
	for at := rotateFast(x) * rotation; at < len(x); at += rotation {
		rotate((*[rotation]float32)(x[at:]))
	}
}

// rotate multiplies by the orthogonal matrix of Walsh and Hadamard, which is its own inverse.
func rotate(x *[rotation]float32) {
	for d := 1; d < rotation; d *= 2 {
		for i := 0; i < rotation; i += 2 * d {
			for j := i; j < i+d; j++ {
				x[j], x[j+d] = x[j]+x[j+d], x[j]-x[j+d]
			}
		}
	}
	for i := range x {
		x[i] *= 1.0 / 8
	}
}

// putHalf rounds to f16, to nearest even.
func putHalf(p []byte, x float32) {
	binary.LittleEndian.PutUint16(p, float16.Fromfloat32(x).Bits())
}

// widen converts rows of f16 to f32.
func widen(x []float32, rows []byte) {
	for i := widenFast(x, rows); i < len(x); i++ {
		x[i] = float16.Frombits(binary.LittleEndian.Uint16(rows[2*i:])).Float32()
	}
}
