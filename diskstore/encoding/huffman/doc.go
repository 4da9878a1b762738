/*
Package huffman decodes planes of bytes in the Huffman codes of RFC 8878, sections 4.2.1 and 4.2.2: a
tree description, a jump table, and four streams that are read from their ends.

Planes have few different bytes, so that their codes are short. A look-up of 11 bits gives up to four
bytes at once, and the four streams are decoded side by side: a processor that waits for one stream's
look-up works on the others. The library that writes the streams decodes them one byte a look-up.

	var d huffman.Decoder
	err := d.Decode(stored, plane)

Decode is quicker than the library for planes of LeastPlane and more, if Fast tells that this processor
has the instructions; tables take most of the time of a smaller plane.
Decode of hostile bytes writes nothing outside the plane, and takes no more memory than a Decoder has.
*/
package huffman
