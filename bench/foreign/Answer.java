import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.tensorflow.Result;
import org.tensorflow.SavedModelBundle;
import org.tensorflow.SessionFunction;
import org.tensorflow.Tensor;
import org.tensorflow.TensorFlow;
import org.tensorflow.ndarray.NdArray;
import org.tensorflow.ndarray.NdArrays;
import org.tensorflow.ndarray.Shape;
import org.tensorflow.types.TFloat32;
import org.tensorflow.types.TInt32;
import org.tensorflow.types.TInt64;
import org.tensorflow.types.TString;
import org.tensorflow.types.family.TType;

/**
 * Loads an exported model and answers one request, in a program that has no Python.
 *
 * <p>Takes the folder of the version, the file of the request, and the file for the answers. Both files hold tensors: how
 * many there are, then of each its name, its dtype, its rank, its dimensions, and its values; numbers as their bytes in the
 * machine's order, texts as their lengths and bytes.
 */
public final class Answer {
  private static final Map<String, Class<? extends TType>> NUMBERS =
      Map.of("float32", TFloat32.class, "int32", TInt32.class, "int64", TInt64.class);

  public static void main(String[] arguments) throws IOException {
    try (SavedModelBundle bundle = SavedModelBundle.load(arguments[0], "serve")) {
      SessionFunction function = bundle.function("serving_default");
      Map<String, Tensor> given = read(Path.of(arguments[1]));
      try (Result answers = function.call(given)) {
        write(Path.of(arguments[2]), answers);
      }
    }
    System.out.println(TensorFlow.version());
  }

  private static Map<String, Tensor> read(Path file) throws IOException {
    Map<String, Tensor> tensors = new LinkedHashMap<>();
    try (DataInputStream from = new DataInputStream(Files.newInputStream(file))) {
      for (int left = from.readInt(); left > 0; left--) {
        String name = from.readUTF();
        String dtype = from.readUTF();
        long[] dimensions = new long[from.readInt()];
        for (int at = 0; at < dimensions.length; at++) {
          dimensions[at] = from.readLong();
        }
        Shape shape = Shape.of(dimensions);
        tensors.put(name, dtype.equals("string") ? texts(from, shape) : numbers(from, dtype, shape));
      }
    }
    return tensors;
  }

  private static Tensor texts(DataInputStream from, Shape shape) throws IOException {
    NdArray<byte[]> texts = NdArrays.ofObjects(byte[].class, shape);
    List<byte[]> read = new ArrayList<>();
    for (long left = shape.size(); left > 0; left--) {
      read.add(from.readNBytes(from.readInt()));
    }
    texts.scalars().forEachIndexed((at, scalar) -> scalar.setObject(read.get((int) place(at, shape))));
    return TString.tensorOfBytes(texts);
  }

  private static long place(long[] at, Shape shape) {
    long place = 0;
    for (int axis = 0; axis < at.length; axis++) {
      place = place * shape.get(axis) + at[axis];
    }
    return place;
  }

  private static Tensor numbers(DataInputStream from, String dtype, Shape shape) throws IOException {
    byte[] bytes = from.readNBytes(from.readInt());
    return Tensor.of(NUMBERS.get(dtype), shape, tensor -> tensor.asRawTensor().data().write(bytes));
  }

  private static void write(Path file, Result answers) throws IOException {
    try (DataOutputStream to = new DataOutputStream(Files.newOutputStream(file))) {
      to.writeInt(answers.size());
      for (String name : answers.keySet()) {
        Tensor tensor = answers.get(name).orElseThrow();
        to.writeUTF(name);
        to.writeUTF(dtypeOf(tensor));
        to.writeInt(tensor.shape().numDimensions());
        for (long dimension : tensor.shape().asArray()) {
          to.writeLong(dimension);
        }
        if (tensor instanceof TString texts) {
          for (NdArray<byte[]> text : texts.asBytes().scalars()) {
            to.writeInt(text.getObject().length);
            to.write(text.getObject());
          }
        } else {
          byte[] bytes = new byte[(int) tensor.numBytes()];
          tensor.asRawTensor().data().read(bytes);
          to.writeInt(bytes.length);
          to.write(bytes);
        }
      }
    }
  }

  private static String dtypeOf(Tensor tensor) {
    if (tensor instanceof TString) {
      return "string";
    }
    for (Map.Entry<String, Class<? extends TType>> one : NUMBERS.entrySet()) {
      if (one.getValue().isInstance(tensor)) {
        return one.getKey();
      }
    }
    throw new IllegalArgumentException("an answer is " + tensor.dataType());
  }
}
