//go:build !amd64

package encoding

func dequantize8Fast(rows, upper, lower []byte, scales []float32) (units int) { return 0 }

func dequantize4Fast(rows, codes []byte, scales []float32) (units int) { return 0 }

func dequantizeChannelsFast(row, codes []byte, scales, centers []float32) (units int) { return 0 }

func dequantizeRotatedFast(rows, codes []byte, scales, centers []float32) (rotations int) { return 0 }

func widenFast(x []float32, rows []byte) (numbers int) { return 0 }

func rotateFast(x []float32) (rotations int) { return 0 }

func largestFast(x []float32) (largest float32, ok bool) { return 0, false }

func codes4Fast(codes []byte, x []float32, by float32) (units int) { return 0 }

func codes8Fast(codes []byte, x []float32, by float32) (units int) { return 0 }

func largerFast(signed, x []float32) (numbers int) { return 0 }

func fit4Fast(codes []byte, x, by, xq, qq []float32) (numbers int) { return 0 }

func split2Fast(rows, lo, hi, bases []byte, rotate int) int { return 0 }

func merge2Fast(rows, lo, hi, bases []byte, rotate int) int { return 0 }

func putTogetherFast(high, apart []byte) int { return 0 }
