# A file as an array of bytes in C: cmake -DIN=FILE -DOUT=FILE.c -DNAME=array -P EmbedText.cmake
file(READ ${IN} _hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" _hex "${_hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," _bytes "${_hex}")
file(WRITE ${OUT} "#include <stddef.h>\nextern const unsigned char ${NAME}[];\nextern const size_t ${NAME}_size;\nconst unsigned char ${NAME}[] = {\n${_bytes}};\nconst size_t ${NAME}_size = sizeof ${NAME};\n")
